package agent

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
)

// What is reviewed must be whole: a hash for every tree, a lock file for every
// profile, no file that belongs to none.
func TestBuiltinProfiles(t *testing.T) {
	t.Parallel()
	have := map[string]bool{"node.json": true}
	builds := map[string]string{}
	for _, p := range Profiles() {
		if len(p.Packages) > 0 && (p.Tree == "" || p.SizeBytes == 0) {
			t.Errorf("%s: tree and sizeBytes are needed", p.Name)
		}
		if other, ok := builds[p.Build()]; ok || p.Build() == "" {
			t.Errorf("%s: build %q is that of %q", p.Name, p.Build(), other)
		}
		builds[p.Build()] = p.Name
		if len(p.Packages) > 0 {
			have[p.Name+".json"] = true
		}
		for a := range p.Approvals {
			for _, r := range p.Routes {
				in := RenderInput{Provider: r.Provider, Approvals: a}
				if r.NeedsModel {
					in.Model = "m"
				}
				if _, err := p.Render(in); err != nil {
					t.Errorf("%s %s %s: %v", p.Name, r.Provider, a, err)
				}
			}
		}
	}
	files, err := filepath.Glob("locks/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !have[filepath.Base(f)] {
			t.Errorf("%s belongs to no profile", f)
		}
	}
	lock, err := os.ReadFile("locks/node.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := checkLock([]Package{{nodePackage, nodeVersion}}, lock); err != nil {
		t.Error(err)
	}
}

func TestLookup(t *testing.T) {
	t.Parallel()
	_, err := Lookup("vim")
	if fault.CodeOf(err) != fault.AgentUnknown {
		t.Fatalf("error %v", err)
	}
	s := fault.From(err).Sentence()
	if !strings.Contains(s, "codex") || strings.Contains(s, "scripted") {
		t.Errorf("the sentence must list what may be chosen, not the hidden: %q", s)
	}
	if p, err := Lookup("scripted"); err != nil || !p.Hidden {
		t.Errorf("scripted: %+v, %v", p.Hidden, err)
	}
}

const minimal = `
name: mini
title: Mini
copy: agent
command: ["{{.Dir}}/agent"]
routes: [{provider: anthropic, dialect: anthropic}]
approvals: {auto: {}}
resume: load
state: {paths: [.mini]}
limits: {start: 1s, session: 1s}
`

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	if _, err := Decode([]byte(minimal), nil); err != nil {
		t.Fatal(err)
	}
	lock := func(change func(root map[string]any, dep map[string]any)) string {
		dep := map[string]any{"version": "1.0.0", "integrity": "sha512-x"}
		l := map[string]any{"lockfileVersion": 3, "packages": map[string]any{
			"": map[string]any{"dependencies": map[string]string{"a": "1.0.0"}}, "node_modules/a": dep}}
		change(l, dep)
		raw, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	packaged := strings.Replace(minimal, "copy: agent", "packages: [{name: a, version: 1.0.0}]", 1)
	ok := lock(func(map[string]any, map[string]any) {})
	if _, err := Decode([]byte(packaged), []byte(ok)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, src, lock, word string }{
		{"empty", "", "", "EOF"},
		{"not yaml", "{", "", "decode"},
		{"unknown field", minimal + "colour: red\n", "", "colour"},
		{"unknown field inside", strings.Replace(minimal, "start: 1s", "start: 1s, stop: 2s", 1), "", "stop"},
		{"key twice", minimal + "title: Again\n", "", "title"},
		{"two documents", minimal + "---\nname: b\n", "", "more than one"},
		{"bad duration", strings.Replace(minimal, "start: 1s", "start: soon", 1), "", "soon"},
		{"bad name", strings.Replace(minimal, "name: mini", "name: Mini/..", 1), "", "name"},
		{"name of node's layer", strings.Replace(minimal, "name: mini", "name: node", 1), "", "name"},
		{"copy and packages", minimal + "packages: [{name: a, version: 1.0.0}]\n", ok, "exactly one"},
		{"copy with a path", strings.Replace(minimal, "copy: agent", "copy: ../agent", 1), "", "file name"},
		{"range instead of version", strings.Replace(packaged, "version: 1.0.0", "version: ^1.0.0", 1), ok, "exact"},
		{"tag instead of version", strings.Replace(packaged, "version: 1.0.0", "version: latest", 1), ok, "exact"},
		{"odd package", strings.Replace(packaged, "name: a,", "name: \"git+https://x/y\",", 1), ok, "package"},
		{"no lock", packaged, "", "lock file"},
		{"lock of other packages", strings.Replace(packaged, "1.0.0", "1.0.1", 1), ok, "locks"},
		{"old lock", packaged, lock(func(l, _ map[string]any) { l["lockfileVersion"] = 1 }), "want 3"},
		{"lock without hash", packaged, lock(func(_, d map[string]any) { delete(d, "integrity") }), "integrity"},
		{"lock with weak hash", packaged, lock(func(_, d map[string]any) { d["integrity"] = "sha1-x" }), "integrity"},
		{"lock tied to a registry", packaged, lock(func(_, d map[string]any) { d["resolved"] = "https://evil/a.tgz" }), "resolved"},
		{"lock that leaves its folder", packaged, lock(func(l, d map[string]any) {
			l["packages"].(map[string]any)["node_modules/../../etc"] = d
		}), "odd place"},
		{"other node", minimal + "node: 20.0.0\n", "", "node"},
		{"bad tree", minimal + "tree: sha256:1\n", "", "tree"},
		{"unknown provider", strings.Replace(minimal, "provider: anthropic", "provider: acme", 1), "", "acme"},
		{"unknown dialect", strings.Replace(minimal, "dialect: anthropic", "dialect: soap", 1), "", "soap"},
		{"model and needsModel", strings.Replace(minimal, "dialect: anthropic", "dialect: anthropic, model: m, needsModel: true", 1), "", "exclude"},
		{"bad model", strings.Replace(minimal, "dialect: anthropic", "dialect: anthropic, model: 'a b'", 1), "", "a b"},
		{"no auto", strings.Replace(minimal, "auto", "ask", 1), "", "auto"},
		{"unknown approvals", strings.Replace(minimal, "auto: {}", "auto: {}, maybe: {}", 1), "", "maybe"},
		{"unknown resume", strings.Replace(minimal, "resume: load", "resume: maybe", 1), "", "maybe"},
		{"bad noise", minimal + "noise: ['']\n", "", "noise"},
		{"state above HOME", strings.Replace(minimal, "paths: [.mini]", "paths: [../etc]", 1), "", "state path"},
		{"absolute state", strings.Replace(minimal, "paths: [.mini]", "paths: [/etc]", 1), "", "state path"},
		{"no state", strings.Replace(minimal, "paths: [.mini]", "paths: []", 1), "", "state.paths"},
		{"no limits", strings.Replace(minimal, "session: 1s", "session: 0s", 1), "", "limits"},
		{"bad template", strings.Replace(minimal, "{{.Dir}}", "{{.Dir", 1), "", "template"},
		{"file above HOME", minimal + "files: [{path: ../x, content: y}]\n", "", "../x"},
		{"env of everyone", minimal + "env: {HOME: /}\n", "", "HOME"},
		{"bad env", minimal + "env: {'A=B': x}\n", "", "not a name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := Decode([]byte(c.src), []byte(c.lock))
			if err == nil || !strings.Contains(err.Error(), c.word) {
				t.Errorf("error %v, want one with %q", err, c.word)
			}
		})
	}
}

// A profile's build follows its text and its lock file.
func TestBuild(t *testing.T) {
	t.Parallel()
	a, err := Decode([]byte(minimal), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Decode([]byte(minimal+"# reviewed\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Decode([]byte(minimal), nil)
	if err != nil {
		t.Fatal(err)
	}
	if a.Build() == b.Build() || a.Build() != again.Build() {
		t.Errorf("builds %s, %s, %s", a.Build(), b.Build(), again.Build())
	}
}

func FuzzDecode(f *testing.F) {
	files, err := filepath.Glob("profiles/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		src, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		lock, _ := os.ReadFile("locks/" + strings.TrimSuffix(filepath.Base(name), ".yaml") + ".json")
		f.Add(src, lock)
	}
	f.Add([]byte(minimal), []byte(nil))
	f.Fuzz(func(t *testing.T, src, lock []byte) {
		p, err := Decode(src, lock)
		if err != nil {
			return
		}
		// What is accepted keeps its files below HOME, whatever the templates say.
		l, err := p.Render(RenderInput{Model: "m"})
		if err != nil {
			return
		}
		for _, file := range l.Files {
			if !strings.HasPrefix(file.Path, "/home/agent/") {
				t.Errorf("file %q is outside HOME", file.Path)
			}
		}
	})
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"version":1,"name":"pi","layer":"pi-0123456789abcdef","tree":"sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}`))
	f.Add([]byte(`{"version":1,"name":"pi","layer":"../../etc","tree":"sha256:x"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "pi.json"), raw, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := readManifest(dir, "pi")
		if err == nil && (strings.ContainsAny(m.Layer, "/\\") || !strings.HasPrefix(m.Layer, "pi-")) {
			t.Errorf("layer %q", m.Layer)
		}
	})
}

func TestHashTree(t *testing.T) {
	t.Parallel()
	build := func(change func(dir string) error) (string, error) {
		dir := t.TempDir()
		for _, err := range []error{
			os.MkdirAll(filepath.Join(dir, "a", "b"), 0o755),
			os.WriteFile(filepath.Join(dir, "a", "f"), []byte("one"), 0o644),
			os.Symlink("a/f", filepath.Join(dir, "l")),
			change(dir),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := seal(dir); err != nil {
			t.Fatal(err)
		}
		i, err := hashTree(t.Context(), dir)
		return i.Hash, err
	}
	base, err := build(func(string) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	in := func(elem string) func(string) string { return func(d string) string { return filepath.Join(d, elem) } }
	f, l := in("a/f"), in("l")
	for _, c := range []struct {
		name   string
		change func(dir string) error
		same   bool
		bad    bool
	}{
		{"write permission", func(d string) error { return os.Chmod(f(d), 0o600) }, true, false},
		{"executable", func(d string) error { return os.Chmod(f(d), 0o700) }, false, false},
		{"content", func(d string) error { return os.WriteFile(f(d), []byte("two"), 0o644) }, false, false},
		{"name", func(d string) error { return os.Rename(f(d), f(d)+"2") }, false, false},
		{"empty folder", func(d string) error { return os.Mkdir(filepath.Join(d, "e"), 0o755) }, false, false},
		{"link target", func(d string) error {
			return errors.Join(os.Remove(l(d)), os.Symlink("a", l(d)))
		}, false, false},
		{"link out of the tree", func(d string) error { return os.Symlink("../../etc/passwd", filepath.Join(d, "a", "x")) }, false, true},
		{"absolute link", func(d string) error { return os.Symlink("/etc/passwd", filepath.Join(d, "x")) }, false, true},
		{"link to a neighbour of the tree", func(d string) error { return os.Symlink("..", filepath.Join(d, "x")) }, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := build(c.change)
			if (err != nil) != c.bad {
				t.Fatalf("error %v", err)
			}
			if !c.bad && (got == base) != c.same {
				t.Errorf("same hash: %t, want %t", got == base, c.same)
			}
		})
	}
}

func TestNPMWords(t *testing.T) {
	t.Parallel()
	var seen []string
	w := &npmWords{total: 2, progress: func(done, total int, last string) { seen = append(seen, last) }}
	for _, s := range []string{"npm http fetch GET 200 https://reg", "istry.example/@a/b?x=1 5ms\nnpm warn deprecated c\n",
		"npm http cache https://registry.example/d 0ms (cache hit)\nnpm error code E404\nnpm error\n", "npm error A complete log of this run can be found in: /x\nlast words"} {
		if n, err := w.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatal(n, err)
		}
	}
	if d := cmp.Diff([]string{"@a/b", "d"}, seen); d != "" {
		t.Errorf("progress (-want +got):\n%s", d)
	}
	if d := cmp.Diff("code E404\nlast words", w.last()); d != "" {
		t.Errorf("words (-want +got):\n%s", d)
	}
}
