package git_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/delivery/forge/forgetest"
	"github.com/hearthd/hearth/internal/delivery/gitwire"
)

// TestPushOptions: what hosts do on push options (merge, make public) is nobody's to ask for from inside.
func TestPushOptions(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"0", "1", "2"} {
		t.Run("git, protocol "+version, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, files, nil)
			seen := optionsSeen(t, b)
			dir := b.clone()
			head := b.commit(dir, "c.txt", "c\n")
			b.refused(dir, []string{"does not support push options"},
				"-c", "protocol.version="+version, "push", "-o", "merge_request.create", "-o", "repo.private=false", "origin", "HEAD:refs/heads/"+branch)
			if got := seen(); len(got) > 0 || b.at(branch) != "" {
				t.Fatalf("the host saw %q, the branch is at %q", got, b.at(branch))
			}
			b.must(dir, "-c", "protocol.version="+version, "push", "origin", "HEAD:refs/heads/"+branch)
			if diff := cmp.Diff([]string{"count=0"}, seen()); diff != "" || b.at(branch) != head {
				t.Errorf("the branch is at %q, the host saw (-want +got):\n%s", b.at(branch), diff)
			}
		})
	}
	zero := strings.Repeat("0", 40)
	for name, caps := range map[string]string{
		"asked for unbidden":            " report-status push-options agent=x",
		"with a value, as git takes it": " report-status push-options=1 agent=x",
		"no report":                     " push-options",
		"side band":                     " report-status side-band-64k push-options",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, files, nil)
			seen := optionsSeen(t, b)
			dir := b.clone()
			head := b.commit(dir, "c.txt", "c\n")
			body := gitwire.AppendLine(nil, zero+" "+head+" refs/heads/"+branch+"\x00"+caps)
			body = gitwire.AppendLine(body, zero+" "+head+" refs/heads/other")
			body = gitwire.AppendFlush(body)
			body = gitwire.AppendLine(body, "merge_request.create")
			body = gitwire.AppendFlush(body)
			answer := b.push(dir, body, head)
			if strings.Contains(caps, "report-status") {
				for _, want := range []string{"ng refs/heads/" + branch + " hearth: push options", "ng refs/heads/other hearth: push options"} {
					if !strings.Contains(answer, want) {
						t.Errorf("the answer lacks %q: %q", want, answer)
					}
				}
			}
			if got := seen(); len(got) > 0 || b.at(branch) != "" || len(b.moves) > 0 {
				t.Errorf("the host saw %q, the branch is at %q", got, b.at(branch))
			}
		})
	}
	t.Run("the bare capability goes no further", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, files, nil)
		seen := optionsSeen(t, b)
		dir := b.clone()
		head := b.commit(dir, "c.txt", "c\n")
		body := gitwire.AppendLine(nil, zero+" "+head+" refs/heads/"+branch+"\x00report-status push-options made-up")
		body = gitwire.AppendFlush(gitwire.AppendFlush(body)) // no options
		if answer := b.push(dir, body, head); !strings.Contains(answer, "ok refs/heads/"+branch) {
			t.Errorf("answer %q", answer)
		}
		if diff := cmp.Diff([]string{"count=0"}, seen()); diff != "" || b.at(branch) != head {
			t.Errorf("the branch is at %q, the host saw (-want +got):\n%s", b.at(branch), diff)
		}
	})
}

// optionsSeen gives what each push that got to the host had of options.
func optionsSeen(t *testing.T, b *bench) func() []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "seen")
	forgetest.Hook(t, b.repo.Dir, "pre-receive", `echo "count=$GIT_PUSH_OPTION_COUNT" >> '`+file+"'\n")
	return func() []string {
		raw, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return strings.Fields(string(raw))
	}
}

// push sends commands as they are, with the pack of a commit, and gives the answer.
func (b *bench) push(dir string, commands []byte, head string) string {
	b.t.Helper()
	cmd := exec.CommandContext(b.t.Context(), "git", "pack-objects", "--revs", "--stdout", "--quiet")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(head+"\n")
	pack, err := cmd.Output()
	if err != nil {
		b.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, b.door+"/git-receive-pack", bytes.NewReader(append(commands, pack...)))
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-git-receive-pack-request")
	resp, err := web.Transport.RoundTrip(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		b.t.Fatalf("push: %s %q %v", resp.Status, answer, err)
	}
	return string(answer)
}
