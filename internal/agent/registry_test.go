package agent

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// registry is an npm registry with a tiny agent and its one dependency, for the real npm.
type registry struct {
	*httptest.Server
	mu      sync.Mutex
	gets    map[string]int
	stall   map[string]chan struct{} // by path: answered when closed
	stalled chan string              // paths that wait
	tamper  bool
	tarball map[string][]byte
}

const (
	tinyAgent = "hearth-tiny-agent"
	tinyDep   = "hearth-tiny-dep"
)

func newRegistry(t *testing.T) *registry {
	t.Helper()
	r := &registry{gets: map[string]int{}, stall: map[string]chan struct{}{}, stalled: make(chan string, 16), tarball: map[string][]byte{}}
	r.tarball[tinyAgent] = packageTarball(t, map[string]string{
		"package.json": `{"name":"` + tinyAgent + `","version":"1.2.3","bin":{"tiny":"cli.js"},"dependencies":{"` + tinyDep + `":"^2.0.0"},"scripts":{"postinstall":"touch ran"}}`,
		"cli.js":       "#!/usr/bin/env node\nconsole.log(require('" + tinyDep + "'))\n",
	})
	r.tarball[tinyDep] = packageTarball(t, map[string]string{
		"package.json": `{"name":"` + tinyDep + `","version":"2.0.1"}`,
		"index.js":     "module.exports = 'dep'\n",
	})
	r.Server = httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(func() {
		r.mu.Lock()
		for k, c := range r.stall {
			close(c)
			delete(r.stall, k)
		}
		r.mu.Unlock()
		r.Close()
	})
	return r
}

func (r *registry) serve(w http.ResponseWriter, q *http.Request) {
	p := strings.TrimPrefix(q.URL.Path, "/")
	r.mu.Lock()
	r.gets[p]++
	wait := r.stall[p]
	tamper := r.tamper
	r.mu.Unlock()
	if wait != nil {
		r.stalled <- p
		select {
		case <-wait:
		case <-q.Context().Done():
			return
		}
	}
	name, _, isTarball := strings.Cut(p, "/-/")
	data, ok := r.tarball[name]
	switch {
	case !ok:
		http.NotFound(w, q)
	case isTarball:
		if tamper {
			data = append(bytes.Clone(data), 0)
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Write(data)
	default:
		v := version(name)
		json.NewEncoder(w).Encode(map[string]any{
			"name": name, "dist-tags": map[string]string{"latest": v},
			"versions": map[string]any{v: map[string]any{"name": name, "version": v,
				"dist": map[string]string{"tarball": "http://" + q.Host + "/" + name + "/-/" + name + "-" + v + ".tgz", "integrity": integrity(data)}}},
		})
	}
}

func (r *registry) hold(path string) (release func()) {
	c := make(chan struct{})
	r.mu.Lock()
	r.stall[path] = c
	r.mu.Unlock()
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if _, ok := r.stall[path]; ok {
			close(c)
			delete(r.stall, path)
		}
	}
}

func (r *registry) count(path string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gets[path]
}

func version(name string) string {
	if name == tinyAgent {
		return "1.2.3"
	}
	return "2.0.1"
}

func tarballPath(name string) string { return name + "/-/" + name + "-" + version(name) + ".tgz" }

func integrity(b []byte) string {
	s := sha512.Sum512(b)
	return "sha512-" + base64.StdEncoding.EncodeToString(s[:])
}

func packageTarball(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, name := range []string{"package.json", "cli.js", "index.js"} {
		c, ok := files[name]
		if !ok {
			continue
		}
		if err := w.WriteHeader(&tar.Header{Name: "package/" + name, Mode: 0o644, Size: int64(len(c)), ModTime: time.Unix(1e9, 0)}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(c)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

const tinyProfile = `
name: tiny
title: Tiny
packages: [{name: ` + tinyAgent + `, version: 1.2.3}]
tree: "%s"
sizeBytes: 1000
layer: {files: [{path: bin/run, mode: 0o555, content: "#!/bin/sh\n"}, {path: notes/a, content: x}]}
command: ["{{.Dir}}/node_modules/.bin/tiny"]
routes: [{provider: anthropic, dialect: anthropic}]
approvals: {auto: {}}
resume: load
state: {paths: [.tiny]}
limits: {start: 1s, session: 1s}
`

// profile is the tiny agent as this registry serves it.
func (r *registry) profile(t *testing.T, tree string) Profile {
	t.Helper()
	lock := fmt.Sprintf(`{"name":"hearth-agent-tiny","version":"1.0.0","lockfileVersion":3,"requires":true,"packages":{
		"":{"name":"hearth-agent-tiny","version":"1.0.0","dependencies":{%q:"1.2.3"}},
		"node_modules/%s":{"version":"1.2.3","integrity":%q,"hasInstallScript":true,"dependencies":{%q:"^2.0.0"},"bin":{"tiny":"cli.js"}},
		"node_modules/%s":{"version":"2.0.1","integrity":%q}}}`,
		tinyAgent, tinyAgent, integrity(r.tarball[tinyAgent]), tinyDep, tinyDep, integrity(r.tarball[tinyDep]))
	p, err := Decode(fmt.Appendf(nil, tinyProfile, tree), []byte(lock))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// installer works in a folder of its own, against this registry.
func (r *registry) installer(t *testing.T) *Installer {
	t.Helper()
	return &Installer{Dir: filepath.Join(t.TempDir(), "agents"), Env: npmEnv(r.URL, t.TempDir()), Logger: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }}
}

func npmEnv(registry, home string) []string {
	return []string{"npm_config_registry=" + registry + "/", "npm_config_userconfig=" + filepath.Join(home, "npmrc"), "npm_config_fetch_retries=0",
		"HTTP_PROXY=", "HTTPS_PROXY=", "http_proxy=", "https_proxy="}
}
