package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
)

// TestMain is also an installer of its own process, to be killed.
func TestMain(m *testing.M) {
	if arg := os.Getenv("HEARTH_TEST_INSTALLER"); arg != "" {
		os.Exit(installerProcess(arg))
	}
	os.Exit(m.Run())
}

type installerArgs struct {
	Dir           string
	Env           []string
	Profile, Lock []byte
}

func installerProcess(arg string) int {
	var a installerArgs
	if err := json.Unmarshal([]byte(arg), &a); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	p, err := Decode(a.Profile, a.Lock)
	if err == nil {
		in := &Installer{Dir: a.Dir, Env: a.Env, Logger: slog.New(slog.DiscardHandler), Now: time.Now}
		_, err = in.Install(context.Background(), p, InstallOptions{})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func needNPM(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("SKIPPED: this machine has no npm")
	}
}

func TestInstall(t *testing.T) {
	t.Parallel()
	needNPM(t)
	reg := newRegistry(t)
	in := reg.installer(t)
	p := reg.profile(t, "")

	if _, _, err := in.Layer(p); fault.CodeOf(err) != fault.AgentNotInstalled {
		t.Fatalf("before the install: %v", err)
	}
	var phases []string
	m, err := in.Install(t.Context(), p, InstallOptions{Progress: func(p Progress) {
		if len(phases) == 0 || phases[len(phases)-1] != p.Phase {
			phases = append(phases, p.Phase)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"fetching", "checking", "done"}, phases); d != "" {
		t.Errorf("phases (-want +got):\n%s", d)
	}
	binds, build, err := in.Layer(p)
	if err != nil {
		t.Fatal(err)
	}
	layer := filepath.Join(in.Dir, "layers", m.Layer)
	if d := cmp.Diff([]sandbox.Bind{{Source: layer, Target: "/opt/hearth/agents/tiny"}}, binds); d != "" {
		t.Errorf("binds (-want +got):\n%s", d)
	}
	if build != p.Build() {
		t.Errorf("build %q, want %q", build, p.Build())
	}
	got := map[string]string{}
	err = filepath.WalkDir(layer, func(f string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(layer, f)
		got[rel] = info.Mode().String()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{ // no "ran": scripts of packages must not run
		"bin/run": "-r-xr-xr-x", "notes/a": "-r--r--r--",
		"node_modules/.bin/tiny":                      "Lrwxrwxrwx",
		"node_modules/" + tinyAgent + "/cli.js":       "-r-xr-xr-x",
		"node_modules/" + tinyAgent + "/package.json": "-r--r--r--",
		"node_modules/" + tinyDep + "/index.js":       "-r--r--r--",
		"node_modules/" + tinyDep + "/package.json":   "-r--r--r--",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("layer (-want +got):\n%s", d)
	}
	if left := names(t, in.Dir); !slices.Equal(left, []string{"layers", "lock", "tiny.json"}) {
		t.Errorf("the folder holds %v", left)
	}

	reg.Close() // the second install has to do without
	again, err := in.Install(t.Context(), p, InstallOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(m, again); d != "" {
		t.Errorf("the second install made another manifest:\n%s", d)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range es {
		out = append(out, e.Name())
	}
	return out
}

func TestInstallFails(t *testing.T) {
	t.Parallel()
	needNPM(t)
	for _, c := range []struct {
		name   string
		change func(t *testing.T, r *registry, in *Installer, p *Profile)
		reason string
		word   string
	}{
		{"registry gone", func(t *testing.T, r *registry, in *Installer, p *Profile) { r.Close() }, reasonNetwork, "ECONNREFUSED"},
		{"package not there", func(t *testing.T, r *registry, in *Installer, p *Profile) { delete(r.tarball, tinyDep) }, reasonNetwork, "404"},
		{"other bytes", func(t *testing.T, r *registry, in *Installer, p *Profile) { r.tamper = true }, reasonIntegrity, "reviewed"},
		{"other tree", func(t *testing.T, r *registry, in *Installer, p *Profile) {
			p.Tree = "sha256:" + strings.Repeat("0", 64)
		}, reasonIntegrity, "reviewed"},
		{"no npm", func(t *testing.T, r *registry, in *Installer, p *Profile) { in.NPM = "no-such-npm" }, reasonNoNPM, "--from"},
		{"no npm at a path", func(t *testing.T, r *registry, in *Installer, p *Profile) { in.NPM = "/no/such/npm" }, reasonNoNPM, "--from"},
		{"old npm", func(t *testing.T, r *registry, in *Installer, p *Profile) { in.NPM = fakeNPM(t, "echo 6.14.18") }, reasonNoNPM, "6.14.18"},
		{"broken npm", func(t *testing.T, r *registry, in *Installer, p *Profile) { in.NPM = fakeNPM(t, "exit 3") }, reasonNoNPM, "npm"},
		{"disk full", func(t *testing.T, r *registry, in *Installer, p *Profile) {
			in.NPM = fakeNPM(t, `[ "$1" = --version ] && echo 11.0.0 && exit; echo "npm error code ENOSPC" >&2; echo "npm error ENOSPC: no space left on device, write" >&2; exit 1`)
		}, reasonDisk, "no space left on device"},
		{"disk too small", func(t *testing.T, r *registry, in *Installer, p *Profile) { p.SizeBytes = 1 << 60 }, reasonDisk, "free"},
		{"something else", func(t *testing.T, r *registry, in *Installer, p *Profile) {
			in.NPM = fakeNPM(t, `[ "$1" = --version ] && echo 11.0.0 && exit; echo "npm warn old stuff" >&2; echo "npm error strange thing" >&2; exit 7`)
		}, reasonOther, "strange thing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			reg := newRegistry(t)
			in, p := reg.installer(t), reg.profile(t, "")
			c.change(t, reg, in, &p)
			_, err := in.Install(t.Context(), p, InstallOptions{})
			if fault.CodeOf(err) != fault.AgentInstallFailed {
				t.Fatalf("error %v", err)
			}
			e := fault.From(err)
			if e.Details["reason"] != c.reason || !strings.Contains(e.Sentence(), c.word) {
				t.Errorf("reason %v, sentence %q; want %s and %q", e.Details["reason"], e.Sentence(), c.reason, c.word)
			}
			if strings.Contains(e.Sentence(), "old stuff") {
				t.Errorf("the sentence holds a warning: %q", e.Sentence())
			}
			if left := names(t, filepath.Join(in.Dir, "layers")); len(left) > 0 {
				t.Errorf("layers left behind: %v", left)
			}
			if _, _, err := in.Layer(p); fault.CodeOf(err) != fault.AgentNotInstalled {
				t.Errorf("after the failure: %v", err)
			}
		})
	}
}

func fakeNPM(t *testing.T, body string) string {
	t.Helper()
	f := filepath.Join(t.TempDir(), "npm")
	if err := os.WriteFile(f, []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return f
}

// A SIGKILL in the middle of a download leaves nothing that is used, and npm
// does not outlive it; the next run fetches only what is missing.
func TestInstallKilled(t *testing.T) {
	t.Parallel()
	needNPM(t)
	reg := newRegistry(t)
	in, p := reg.installer(t), reg.profile(t, "")
	release := reg.hold(tarballPath(tinyDep))
	arg, err := json.Marshal(installerArgs{in.Dir, in.Env, fmt.Appendf(nil, tinyProfile, ""), p.lock})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "HEARTH_TEST_INSTALLER="+string(arg))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-reg.stalled:
	case <-time.After(60 * time.Second):
		t.Fatal("npm never asked for the package")
	}
	// The other package has to be in npm's cache for the count below to mean something.
	until(t, "the first package to be fetched", func() bool {
		out, _ := exec.Command("grep", "-rlF", tarballPath(tinyAgent), filepath.Join(in.Dir, "cache", "_cacache", "index-v5")).Output()
		return len(out) > 0
	})
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	until(t, "npm to end", func() bool { return len(processesIn(in.Dir)) == 0 })
	if _, _, err := in.Layer(p); fault.CodeOf(err) != fault.AgentNotInstalled {
		t.Errorf("after the kill: %v", err)
	}
	if left := names(t, filepath.Join(in.Dir, "layers")); len(left) > 0 {
		t.Errorf("layers left behind: %v", left)
	}
	release()
	if _, err := in.Install(t.Context(), p, InstallOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := reg.count(tarballPath(tinyAgent)); n != 1 {
		t.Errorf("what had been fetched was fetched %d times", n)
	}
	if left := names(t, in.Dir); !slices.Equal(left, []string{"layers", "lock", "tiny.json"}) {
		t.Errorf("the folder holds %v", left)
	}
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// processesIn lists processes whose working directory is below dir.
func processesIn(dir string) []string {
	var out []string
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && strings.HasPrefix(to, dir) {
			out = append(out, l)
		}
	}
	return out
}

func TestInstallCanceled(t *testing.T) {
	t.Parallel()
	needNPM(t)
	reg := newRegistry(t)
	in, p := reg.installer(t), reg.profile(t, "")
	reg.hold(tarballPath(tinyDep))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { // ends with the install
		<-reg.stalled
		cancel()
	}()
	if _, err := in.Install(ctx, p, InstallOptions{}); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	if left := processesIn(in.Dir); len(left) > 0 {
		t.Errorf("npm still runs: %v", left)
	}
}

// Two at once: one fetches, the other waits and finds it done.
func TestInstallConcurrent(t *testing.T) {
	t.Parallel()
	needNPM(t)
	reg := newRegistry(t)
	first, p := reg.installer(t), reg.profile(t, "")
	second := *first
	release := reg.hold(tarballPath(tinyDep))
	waits := make(chan struct{}, 1)
	var wg sync.WaitGroup
	var errs [2]error
	wg.Go(func() { _, errs[0] = first.Install(t.Context(), p, InstallOptions{}) })
	<-reg.stalled
	wg.Go(func() {
		_, errs[1] = second.Install(t.Context(), p, InstallOptions{Progress: func(p Progress) {
			if p.Phase == "waiting" {
				waits <- struct{}{}
			}
		}})
	})
	<-waits
	release()
	wg.Wait()
	if errs[0] != nil || errs[1] != nil {
		t.Fatal(errs)
	}
	if n := reg.count(tarballPath(tinyDep)); n != 1 {
		t.Errorf("fetched %d times", n)
	}
}

func TestDamagedLayer(t *testing.T) {
	t.Parallel()
	needNPM(t)
	reg := newRegistry(t)
	in, p := reg.installer(t), reg.profile(t, "")
	m, err := in.Install(t.Context(), p, InstallOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Verify(t.Context(), p); err != nil {
		t.Fatalf("unharmed: %v", err)
	}
	file := filepath.Join(in.Dir, "layers", m.Layer, "node_modules", tinyDep, "index.js")
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("module.exports = 'bad'\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := in.Verify(t.Context(), p); fault.CodeOf(err) != fault.AgentLayerDamaged {
		t.Fatalf("harmed: %v", err)
	}
	again, err := in.Install(t.Context(), p, InstallOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if again.Layer != m.Layer || in.Verify(t.Context(), p) != nil {
		t.Errorf("the install did not put it right: %+v", again)
	}
	// The damaged files may be bound into a sandbox: they stay until pruned.
	if n := len(names(t, filepath.Join(in.Dir, "layers"))); n != 2 {
		t.Errorf("%d layers, want the new one and the damaged one", n)
	}
	removed, err := in.Prune(t.Context(), time.Now().Add(time.Hour))
	if err != nil || len(removed) != 1 || !strings.Contains(removed[0], ".damaged-") {
		t.Errorf("pruned %v, %v", removed, err)
	}
	if err := in.Verify(t.Context(), p); err != nil {
		t.Errorf("after the prune: %v", err)
	}
}

func TestInstallFromFolder(t *testing.T) {
	t.Parallel()
	needNPM(t)
	reg := newRegistry(t)
	origin := reg.installer(t)
	m, err := origin.Install(t.Context(), reg.profile(t, ""), InstallOptions{})
	if err != nil {
		t.Fatal(err)
	}
	reg.Close()
	pinned := reg.profile(t, m.Tree)

	t.Run("layer", func(t *testing.T) {
		t.Parallel()
		in := reg.installer(t)
		in.NPM = "no-such-npm"
		got, err := in.Install(t.Context(), pinned, InstallOptions{From: origin.Dir})
		if err != nil {
			t.Fatal(err)
		}
		if got.Tree != m.Tree || in.Verify(t.Context(), pinned) != nil {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("harmed layer", func(t *testing.T) {
		t.Parallel()
		from := t.TempDir()
		if out, err := exec.Command("cp", "-a", origin.Dir+"/.", from).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		evil := filepath.Join(from, "layers", m.Layer, "bin", "evil")
		if err := os.WriteFile(evil, []byte("x"), 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := reg.installer(t).Install(t.Context(), pinned, InstallOptions{From: from})
		if e := fault.From(err); e == nil || e.Details["reason"] != reasonIntegrity {
			t.Errorf("error %v", err)
		}
	})
	t.Run("another version", func(t *testing.T) {
		t.Parallel()
		p := reg.profile(t, "sha256:"+strings.Repeat("1", 64))
		_, err := reg.installer(t).Install(t.Context(), p, InstallOptions{From: origin.Dir})
		if e := fault.From(err); e == nil || e.Details["reason"] != reasonSource {
			t.Errorf("error %v", err)
		}
	})
	t.Run("nothing in it", func(t *testing.T) {
		t.Parallel()
		_, err := reg.installer(t).Install(t.Context(), pinned, InstallOptions{From: t.TempDir()})
		if e := fault.From(err); e == nil || e.Details["reason"] != reasonSource {
			t.Errorf("error %v", err)
		}
	})
	t.Run("no folder", func(t *testing.T) {
		t.Parallel()
		_, err := reg.installer(t).Install(t.Context(), pinned, InstallOptions{From: filepath.Join(t.TempDir(), "none")})
		if fault.CodeOf(err) != fault.InvalidInput {
			t.Errorf("error %v", err)
		}
	})
}

func TestInstallFromCache(t *testing.T) {
	t.Parallel()
	needNPM(t)
	reg := newRegistry(t)
	p := reg.profile(t, "")
	cache := t.TempDir()
	for _, n := range []string{tinyAgent, tinyDep} {
		cmd := exec.Command("npm", "cache", "add", n+"@"+version(n), "--cache", cache)
		cmd.Env = append(os.Environ(), npmEnv(reg.URL, t.TempDir())...)
		cmd.Dir = t.TempDir()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("npm cache add: %v: %s", err, out)
		}
	}
	asked := reg.count(tarballPath(tinyAgent))
	in := reg.installer(t)
	if _, err := in.Install(t.Context(), p, InstallOptions{From: cache}); err != nil {
		t.Fatal(err)
	}
	if reg.count(tarballPath(tinyAgent)) != asked {
		t.Error("the registry was asked")
	}

	empty := t.TempDir()
	if err := os.Mkdir(filepath.Join(empty, "_cacache"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := reg.installer(t).Install(t.Context(), p, InstallOptions{From: empty})
	if e := fault.From(err); e == nil || e.Details["reason"] != reasonSource {
		t.Errorf("from an empty cache: %v", err)
	}
}

func TestInstallCopied(t *testing.T) {
	t.Parallel()
	p, err := Lookup("scripted")
	if err != nil {
		t.Fatal(err)
	}
	in := &Installer{Dir: filepath.Join(t.TempDir(), "agents"), Logger: slog.New(slog.DiscardHandler), Now: time.Now}
	if _, err := in.Install(t.Context(), p, InstallOptions{}); fault.CodeOf(err) != fault.InvalidInput {
		t.Errorf("without a file: %v", err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "agent")
	if err := os.WriteFile(file, []byte("one"), 0o755); err != nil {
		t.Fatal(err)
	}
	var builds []string
	for _, from := range []string{file, dir} {
		if _, err := in.Install(t.Context(), p, InstallOptions{From: from}); err != nil {
			t.Fatalf("from %s: %v", from, err)
		}
		binds, build, err := in.Layer(p)
		if err != nil {
			t.Fatal(err)
		}
		builds = append(builds, build)
		if len(binds) != 1 || binds[0].Target != "/opt/hearth/agents/scripted" {
			t.Errorf("binds %v", binds)
		}
		if got, err := os.ReadFile(filepath.Join(binds[0].Source, "agent")); err != nil || string(got) != "one" {
			t.Errorf("agent %q, %v", got, err)
		}
	}
	if err := os.WriteFile(file, []byte("two"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Install(t.Context(), p, InstallOptions{From: dir}); err != nil {
		t.Fatal(err)
	}
	_, build, err := in.Layer(p)
	if err != nil {
		t.Fatal(err)
	}
	if builds[0] != builds[1] || build == builds[0] {
		t.Errorf("builds %v, then %s: must follow the file", builds, build)
	}
	if _, err := in.Install(t.Context(), p, InstallOptions{}); err != nil {
		t.Errorf("again without a file: %v", err)
	}
	if _, err := in.Install(t.Context(), p, InstallOptions{From: t.TempDir()}); fault.CodeOf(err) != fault.InvalidInput {
		t.Errorf("from an empty folder: %v", err)
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	in := &Installer{Dir: filepath.Join(t.TempDir(), "agents"), Logger: slog.New(slog.DiscardHandler), Now: time.Now}
	file := filepath.Join(t.TempDir(), "agent")
	if err := os.WriteFile(file, []byte("one"), 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := Lookup("scripted")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := in.Install(t.Context(), p, InstallOptions{From: file}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(in.Dir, "pi.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	list, err := in.List()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, s := range list {
		got[s.Name] = s.Need
		if s.Installed != (s.Need == "") || s.Bytes <= 0 {
			t.Errorf("%+v", s)
		}
	}
	want := map[string]string{"claude": "Claude Code is missing", "codex": "Codex is missing", "gemini": "Gemini CLI is missing",
		"opencode": "opencode is missing", "pi": "its manifest cannot be read", "scripted": ""}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("needs (-want +got):\n%s", d)
	}
}

// TestInstallPi installs pi from the npm registry, whole. HEARTH_TEST_INSTALL=1.
func TestInstallPi(t *testing.T) {
	if os.Getenv("HEARTH_TEST_INSTALL") == "" {
		t.Skip("SKIPPED: this takes 100 MB from the npm registry; set HEARTH_TEST_INSTALL to run it")
	}
	p, err := Lookup("pi")
	if err != nil {
		t.Fatal(err)
	}
	in := &Installer{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), Now: time.Now}
	m, err := in.Install(t.Context(), p, InstallOptions{Progress: func(p Progress) { t.Log(p) }})
	if err != nil {
		t.Fatal(err)
	}
	if m.Tree != p.Tree {
		t.Errorf("tree %s, reviewed %s", m.Tree, p.Tree)
	}
	binds, _, err := in.Layer(p)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(filepath.Join(binds[0].Source, "bin", "node"), "--version").Output()
	if err != nil || strings.TrimSpace(string(out)) != "v"+p.Node {
		t.Errorf("node says %q, %v", out, err)
	}
}
