package e2e

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hearthd/hearth/client"
)

// run has a turn run a shell command and returns what it printed.
func (w *world) run(id, command string) string {
	w.t.Helper()
	turn := w.ended(id, w.prompt(id, "@@run "+command+"@@").Turn.ID, deadline)
	if turn.State != "completed" {
		w.t.Fatalf("%s: turn ended as %s %s (%s)", command, turn.State, turn.Code, turn.Message)
	}
	return outputs(w.transcript(id), turn.Number)
}

// What a command of the agent can reach from inside: itself, and the doors.
func TestWalls(t *testing.T) {
	t.Parallel()
	canary := "host-canary-" + rand.Text()
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.CreateTemp(home, ".hearth-e2e-*")
	if err != nil {
		t.Fatal(err)
	}
	host := f.Name()
	defer os.Remove(host)
	if _, err := f.WriteString(canary); err != nil || f.Close() != nil {
		t.Fatal(err)
	}
	var reached bool
	listener := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	defer listener.Close()
	port := listener.Listener.Addr().(*net.TCPAddr).Port

	w := newWorld(t, options{})
	r, url := w.repo("acme/calc")
	if _, err := w.git.NewRepo(t.Context(), "acme/other", map[string]string{"secret.txt": "other"}); err != nil {
		t.Fatal(err)
	}
	neighbour := w.create(client.CreateInput{Repo: url, Prompt: "@@write neighbour.txt here@@"})
	s := w.create(client.CreateInput{Repo: url, Prompt: "@@say hello@@"})
	id := s.Session.ID
	w.wantTurn(w.ended(id, s.Turn.ID, deadline), "completed", "")
	w.wantTurn(w.ended(neighbour.Session.ID, neighbour.Turn.ID, deadline), "completed", "")

	t.Run("files", func(t *testing.T) {
		out := w.run(id, "ls -la / /root /home /mnt /srv /var /run /tmp 2>&1; cat "+host+" /etc/shadow /etc/ssh/ssh_host_rsa_key "+w.state+"/owner-token 2>&1; cat /etc/passwd | wc -l")
		if n := strings.Count(out, "No such file"); strings.Contains(out, canary) || strings.Contains(out, w.token) || strings.Contains(out, ":$") || n < 4 {
			t.Errorf("the host shows: %s", out)
		}
		for _, name := range []string{"boot", "media", filepath.Base(w.dir)} {
			if strings.Contains(out, " "+name+"\n") {
				t.Errorf("the host's root shows (%s): %s", name, out)
			}
		}
		if out := w.run(id, "echo x > /usr/bin/planted && ls /usr/bin/planted; true"); strings.Contains(out, "planted") {
			if _, err := os.Stat("/usr/bin/planted"); err == nil {
				os.Remove("/usr/bin/planted")
				t.Error("a write to /usr reached the host")
			}
		}
	})
	t.Run("network", func(t *testing.T) {
		addrs, err := net.InterfaceAddrs()
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		b.WriteString("cat /proc/net/route 2>/dev/null; ls /sys/class/net 2>/dev/null; ")
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil {
				fmt.Fprintf(&b, "timeout 3 bash -c 'exec 3<>/dev/tcp/%s/%d && echo REACHED %s' 2>&1; ", n.IP, port, n.IP)
			}
		}
		b.WriteString("timeout 3 bash -c 'exec 3<>/dev/tcp/1.1.1.1/443 && echo REACHED world' 2>&1; timeout 5 getent hosts example.com && echo RESOLVED; true")
		out := w.run(id, b.String())
		if strings.Contains(out, "REACHED") && !strings.Contains(out, "REACHED'") || strings.Contains(out, "RESOLVED\n") || reached {
			t.Errorf("the network is open: %s", out)
		}
		if strings.Contains(out, "eth0") {
			t.Errorf("there is an interface: %s", out)
		}
	})
	t.Run("egress", func(t *testing.T) {
		out := w.run(id, "curl -sS -m 10 https://registry.npmjs.org/ 2>&1; curl -sS -m 10 http://example.com/ 2>&1; curl -sS -m 10 -x http://127.0.0.1:3128 http://169.254.169.254/latest/ 2>&1; "+
			fmt.Sprintf("curl -sS -m 10 -x http://127.0.0.1:3128 http://127.0.0.1:%d/ 2>&1; env | grep -i proxy; true", port))
		if reached {
			t.Error("the host's loopback was reached through the egress door")
		}
		if n := strings.Count(out, "403"); n < 1 || !strings.Contains(out, "not on the session's allowlist") {
			t.Errorf("refusals are not told: %s", out)
		}
	})
	t.Run("neighbours", func(t *testing.T) {
		out := w.run(id, "for d in /proc/[0-9]*; do tr '\\0' ' ' < $d/cmdline; echo; done; ls -la /run /run/hearth /workspace 2>&1; find / -xdev -name '*neighbour*' -not -path '/proc/*' 2>/dev/null; true")
		if strings.Contains(out, tail(neighbour.Session.ID)) || strings.Contains(out, "neighbour.txt") || strings.Contains(out, "hearth serve") {
			t.Errorf("the neighbour shows: %s", out)
		}
	})
	t.Run("push elsewhere", func(t *testing.T) {
		before := fmt.Sprint(heads(t, r))
		branch := w.get(id).Branch
		out := w.run(id, "git commit -q --allow-empty -m x; git push origin HEAD:refs/heads/other 2>&1; git push origin HEAD:refs/heads/main 2>&1; git push origin HEAD:refs/tags/v1 2>&1; git push origin :main 2>&1; true")
		if after := fmt.Sprint(heads(t, r)); after != before {
			t.Errorf("the host's refs are %s, they were %s", after, before)
		}
		if !strings.Contains(out, "may push only") || !strings.Contains(out, branch) {
			t.Errorf("git does not print why: %s", out)
		}
		out = w.run(id, "git clone -q "+w.gitURL+"/acme/other.git /tmp/o1 2>&1; git clone -q http://127.0.0.1:3129"+strings.TrimPrefix(w.gitURL, "http:/")+"/acme/other /tmp/o2 2>&1; "+
			"git -c http.proxy= ls-remote "+w.gitURL+"/acme/other.git 2>&1; ls /tmp/o1 /tmp/o2 2>&1; true")
		if strings.Contains(out, "secret.txt") || strings.Contains(out, "refs/heads") || !strings.Contains(out, "only its session's repository") {
			t.Errorf("another repository: %s", out)
		}
		if out = w.run(id, "git push origin HEAD 2>&1"); !strings.Contains(out, "HEAD -> "+branch) && !strings.Contains(out, branch+" -> "+branch) && !strings.Contains(out, "up-to-date") {
			t.Errorf("its own branch: %s", out)
		}
	})
	t.Run("work of others at the door", func(t *testing.T) {
		out := w.run(id, "for p in /hearth/work.git/info/refs?service=git-receive-pack /hearth/../../etc/passwd /hearth/work.git/config /hearth/work.git/HEAD; do curl -s --path-as-is -o /dev/null -w '%{http_code} ' http://127.0.0.1:3129$p; done")
		if !strings.Contains(out, "403 307 403 403") { // the second is sent on to /etc/passwd, where there is nothing either
			t.Errorf("the door answers: %s", out)
		}
	})
	w.delete(id, true)
	w.delete(neighbour.Session.ID, true)
}

// forms are the ways in which a secret may have been written.
func forms(secret string) []string {
	return []string{secret, base64.StdEncoding.EncodeToString([]byte(secret))[:len(secret)], fmt.Sprintf("%x", secret)}
}

// No key of a model and no password of a git host is inside a sandbox, nor on the server's
// disk outside the file it was given in; one that an agent says all the same is masked.
func TestNoCredentials(t *testing.T) {
	t.Parallel()
	agents := []struct{ name, model string }{{"scripted", ""}, {"pi", ""}, {"claude", ""}, {"codex", "scripted"}}
	for _, a := range agents {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			o := options{}
			if a.name != "scripted" {
				o.agents = needed(t, "HEARTH_TEST_AGENTS")
			}
			w := newWorld(t, o)
			_, url := w.repo("acme/calc")
			s := w.create(client.CreateInput{Repo: url, Agent: a.name, Model: a.model,
				Prompt: "@@write a.txt one@@ @@run env; git config -l --show-origin; git remote -v; git fetch 2>&1; cat ~/.git-credentials ~/.netrc 2>&1; true@@"})
			id := s.Session.ID
			one := w.ended(id, s.Turn.ID, deadline)
			w.wantTurn(one, "completed", "")
			w.noSecret("the transcript", w.rawTranscript(id))
			var parts []string
			for _, secret := range []string{w.key, w.password} {
				for _, f := range forms(secret) {
					parts = append(parts, "-e '"+f[:8]+"''"+f[8:]+"'") // so that the search does not find itself
				}
			}
			// As root of the sandbox, over whatever is not the host's /usr.
			search := "grep -rslaF " + strings.Join(parts, " ")
			out := w.inside(id, search+" /etc /root /home /run /tmp /var /opt/hearth /workspace 2>/dev/null; "+search+" /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; true")
			if out = strings.TrimSpace(out); out != "" {
				t.Errorf("a credential is inside: %s", out)
			}
			// An agent that found the key elsewhere and says it.
			half := len(w.key) / 2
			two := w.ended(id, w.prompt(id, "@@run a="+w.key[:half]+"; echo key ${a}"+w.key[half:]+" end; true@@").Turn.ID, deadline)
			w.wantTurn(two, "completed", "")
			raw := w.rawTranscript(id)
			if out := outputs(w.transcript(id), 2); !strings.Contains(out, "key ") || !strings.Contains(out, " end") {
				t.Errorf("the key was not said: the test shows nothing: %s", raw)
			}
			w.noSecret("the transcript", raw)
			w.delete(id, true)
			w.stop()
			w.noSecretsOnDisk()
			w.start()
		})
	}
}

func (w *world) rawTranscript(id string) []byte {
	w.t.Helper()
	var b bytes.Buffer
	for _, p := range w.transcript(id) {
		b.WriteString(p.raw)
		b.WriteByte('\n')
	}
	return b.Bytes()
}

func (w *world) noSecret(where string, b []byte) {
	w.t.Helper()
	for _, secret := range []string{w.key, w.password} {
		for _, f := range forms(secret) {
			if i := bytes.Index(b, []byte(f)); i >= 0 {
				w.t.Errorf("%s holds a credential: …%q…", where, b[max(0, i-60):min(len(b), i+20)])
			}
		}
	}
}

// noSecretsOnDisk looks into every file that the server wrote.
func (w *world) noSecretsOnDisk() {
	w.t.Helper()
	n := 0
	for _, root := range []string{w.state, w.logFile()} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			n++
			w.noSecret(path, b)
			return nil
		})
		if err != nil {
			w.t.Errorf("search %s: %v", root, err)
		}
	}
	if n < 3 {
		w.t.Errorf("only %d files were searched", n)
	}
}
