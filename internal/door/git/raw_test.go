package git_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/delivery/gitwire"
	"github.com/hearthd/hearth/internal/door/git"
	"github.com/hearthd/hearth/internal/testkit/gitserver"
)

// TestRawPush sends pushes that git itself does not make.
func TestRawPush(t *testing.T) {
	t.Parallel()
	zero := strings.Repeat("0", 40)
	id := strings.Repeat("a", 40)
	line := func(s string) string { return string(gitwire.AppendLine(nil, s)) }
	caps := "\x00 report-status side-band-64k agent=x"
	make1 := line(zero + " " + id + " refs/heads/" + branch + caps)
	tests := []struct {
		name     string
		body     string
		encoding string
		status   int
		want     string
	}{
		{"empty", "", "", 403, "broke off"},
		{"not pkt-lines", "hello world", "", 403, "cannot be read"},
		{"cut command", make1[:30], "", 403, "broke off"},
		{"no flush", make1, "", 403, "broke off"},
		{"probe", "0000", "", 200, ""},
		{"bad gzip", "0000", "gzip", 403, "gzip"},
		{"cut gzip", string(packed(t, make1+"0000")[:20]), "gzip", 403, "push"},
		{"other encoding", "0000", "br", 403, "encoding"},
		{"upper case id", line(zero+" "+strings.ToUpper(id)+" refs/heads/"+branch+caps) + "0000", "", 403, "cannot be read"},
		{"sha256 in a sha1 push", line(zero+" "+strings.Repeat("a", 64)+" refs/heads/"+branch+caps) + "0000", "", 403, "cannot be read"},
		{"capabilities twice", make1 + line(zero+" "+id+" refs/heads/x"+caps) + "0000", "", 403, "cannot be read"},
		{"twice the branch", make1 + line(zero+" "+id+" refs/heads/"+branch) + "0000", "", 200, "named twice"},
		{"shallow after a command", make1 + line("shallow "+id) + "0000", "", 403, "cannot be read"},
		{"delimiter", make1 + "0001", "", 403, "cannot be read"},
		{"certificate", line("push-cert\x00report-status side-band-64k") + line("certificate version 0.1\n") + line("push-cert-end\n") + "0000", "", 200, "signed pushes"},
		{"gzip of a refused push", string(packed(t, line(zero+" "+id+" refs/heads/main"+caps)+"0000")), "gzip", 200, "may push only"},
		{"ref with a trick", line(zero+" "+id+" refs/heads/"+branch+"\n"+caps) + "0000", "", 200, "unpack"},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, files, nil)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.door+"/git-receive-pack", io.MultiReader(strings.NewReader(c.body)))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/x-git-receive-pack-request")
			req.Header.Set("Expect", "100-continue")
			if c.encoding != "" {
				req.Header.Set("Content-Encoding", c.encoding)
			}
			resp, err := web.Transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != c.status || !strings.Contains(string(body), c.want) {
				t.Errorf("answer is %d %q, want %d with %q", resp.StatusCode, body, c.status, c.want)
			}
			if len(b.moves) > 0 || b.at(branch) != "" {
				t.Errorf("moves: %v", b.moves)
			}
		})
	}
}

func packed(t *testing.T, s string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.WriteString(z, s); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestLimits(t *testing.T) {
	t.Parallel()
	t.Run("idle", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, files, func(c *git.Config) { c.Limits.Idle = 300 * time.Millisecond })
		dir := b.clone()
		head := b.commit(dir, "c", "c\n")
		// A slow host is not a silent sandbox.
		b.host.AddFault(gitserver.Fault{Service: gitserver.ReceivePack, Delay: time.Second, Times: 1})
		b.must(dir, "push", "origin", "HEAD:refs/heads/"+branch)
		if b.at(branch) != head {
			t.Errorf("the branch is at %s, want %s", b.at(branch), head)
		}
		conn, err := net.Dial("tcp", strings.TrimPrefix(b.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST %s/git-receive-pack HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-git-receive-pack-request\r\nContent-Length: 100\r\n\r\n00", b.cfg.Path)
		answer, err := io.ReadAll(conn) // ends although we say no more
		if err != nil || !strings.Contains(string(answer), "broke off") {
			t.Errorf("answer %q, %v", answer, err)
		}
	})
	t.Run("push", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, files, func(c *git.Config) { c.Limits.PushBytes = 1 << 20 })
		dir := b.clone()
		b.commit(dir, "big", noise(3<<20))
		b.refused(dir, nil, "push", "origin", "HEAD:refs/heads/"+branch)
		if b.at(branch) != "" || len(b.moves) > 0 {
			t.Errorf("the branch is at %s", b.at(branch))
		}
	})
	t.Run("answer is broken, never cut silently", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, map[string]string{"big": noise(5000)}, func(c *git.Config) { c.Limits.ResponseBytes = 1000 })
		b.refused("", nil, "clone", b.door, filepath.Join(t.TempDir(), "w"))
	})
	t.Run("host breaks off", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, files, nil)
		b.host.AddFault(gitserver.Fault{Service: gitserver.UploadPack, CutAfter: 100})
		b.refused("", nil, "clone", b.door, filepath.Join(t.TempDir(), "w"))
	})
	t.Run("too many at once", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, files, func(c *git.Config) { c.Limits.Concurrent = 1 })
		conn, err := net.Dial("tcp", strings.TrimPrefix(b.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST %s/git-receive-pack HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-git-receive-pack-request\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n", b.cfg.Path)
		// The server says "continue" once the handler reads the body: it has the only slot.
		first := make([]byte, 12)
		if _, err := io.ReadFull(conn, first); err != nil {
			t.Fatal(err)
		}
		b.refused("", []string{"remote: hearth: Too many git requests at once"}, "ls-remote", b.door)
	})
}

func TestNewRefusesIncompleteConfig(t *testing.T) {
	t.Parallel()
	b := newBench(t, files, nil)
	for name, change := range map[string]func(*git.Config){
		"login in the upstream": func(c *git.Config) { c.Upstream = "https://u:p@host.test/r" },
		"file upstream":         func(c *git.Config) { c.Upstream = "file:///r" },
		"no path":               func(c *git.Config) { c.Path = "" },
		"no credential":         func(c *git.Config) { c.Credential = nil },
		"no branch":             func(c *git.Config) { c.Branch = "" },
		"no known":              func(c *git.Config) { c.Known = nil },
		"no moved":              func(c *git.Config) { c.Moved = nil },
	} {
		cfg := b.cfg
		change(&cfg)
		if _, err := git.New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
