package git_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	"github.com/hearthd/hearth/internal/door"
	"github.com/hearthd/hearth/internal/door/git"
)

// TestThroughTheDoorsSocket goes the way of a sandbox: loopback port, Unix socket, first line, door.
func TestThroughTheDoorsSocket(t *testing.T) {
	t.Parallel()
	b := newBench(t, files, nil)
	h, err := git.New(b.cfg)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "doors")
	doors, err := door.Listen(path, b.cfg.Log)
	if err != nil {
		t.Fatal(err)
	}
	doors.Handle("git", door.HTTP(h, b.cfg.Log))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := doors.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	wg.Go(func() {
		for {
			c, err := port.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { forward(t, c, path) })
		}
	})
	t.Cleanup(func() { port.Close(); cancel(); wg.Wait() })

	b.base = "http://" + port.Addr().String()
	b.door = b.base + b.cfg.Path
	dir := b.clone()
	head := b.commit(dir, "big", noise(4<<20))
	b.must(dir, "push", "origin", "HEAD:refs/heads/"+branch)
	if b.at(branch) != head || b.known != head {
		t.Errorf("the branch is at %s, known %s, want %s", b.at(branch), b.known, head)
	}
	b.refused(dir, []string{"may push only"}, "push", "origin", "HEAD:main")
	b.refused("", []string{"may reach only its session's repository"}, "ls-remote", b.base+"/other/repo")
	if resp, _ := get(t, b.door+"/info/lfs/objects/batch"); resp.StatusCode != http.StatusForbidden {
		t.Errorf("LFS: %s", resp.Status)
	}
}

func forward(t *testing.T, c net.Conn, path string) {
	defer c.Close()
	u, err := net.Dial("unix", path)
	if err != nil {
		t.Error(err)
		return
	}
	defer u.Close()
	if _, err := io.WriteString(u, "git\n"); err != nil {
		t.Error(err)
		return
	}
	done := make(chan struct{})
	go func() { // ends when the sandbox closes; waited for below
		_, _ = io.Copy(u, c)
		_ = u.(*net.UnixConn).CloseWrite()
		close(done)
	}()
	_, _ = io.Copy(c, u)
	c.Close()
	<-done
}
