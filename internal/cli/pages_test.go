package cli_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// The error page of a proxy is told as what it is, with its status, by every command that
// asks the server, and none of its text is shown as talk.
func TestPagesOfOthers(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 401, 502} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "<html>\ndata: {\"type\":\"text-delta\",\"id\":\"a\",\"delta\":\"page\"}\n\n</html>")
		}))
		for _, args := range [][]string{{"list"}, {"diff", "ses_1"}, {"transcript", "ses_1"}, {"attach", "ses_1"}, {"cancel", "ses_1"}} {
			sh := newShell(t)
			sh.giveUp = 30 * time.Millisecond
			sh.env["HEARTH_SERVER"] = s.URL
			code := sh.run(args...)
			if said := sh.err.String(); code == 0 || !strings.Contains(said, fmt.Sprintf("status %d", status)) || strings.Contains(sh.out.String()+said, "page\n") {
				t.Errorf("%d, %v: exit status %d, said %q, %q", status, args, code, sh.out.String(), said)
			}
		}
		s.Close()
	}
}
