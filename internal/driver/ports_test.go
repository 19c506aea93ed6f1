package driver_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/fault"
)

// freePort is an address that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// A loopback port leads to its door, both directions end by themselves, and a
// connection made while nobody listens on the doors socket is held.
func TestPorts(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	free := freePort(t)
	own := filepath.Join(b.dir, "own.sock")
	b.cfg.Ports = []driverapi.Port{{Listen: busy.Addr().String(), Door: "git"}, {Listen: free, Door: "model"}}
	b.start()
	s, err := b.client.Status(t.Context())
	if err != nil || len(s.PortsFailed) != 1 || !strings.HasPrefix(s.PortsFailed[0], busy.Addr().String()) {
		t.Errorf("status %+v %v", s, err)
	}
	b.kill()
	b.cfg.Socket = own
	b.start()
	var c net.Conn
	eventually(t, "the port opens", func() bool {
		c, err = net.Dial("tcp", free)
		return err == nil
	})
	defer c.Close()
	if _, err := io.WriteString(c, "question"); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("unix", own) // the server comes back
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	context.AfterFunc(ctx, func() { ln.Close() })
	for {
		d, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(d)
		line, err := r.ReadString('\n')
		if err != nil || line != "model\n" {
			d.Close() // the driver door, which dials too
			continue
		}
		got, err := io.ReadAll(r) // ends, since the client has ended its direction
		if err != nil || string(got) != "question" {
			t.Errorf("got %q %v", got, err)
		}
		if _, err := io.WriteString(d, "answer"); err != nil {
			t.Error(err)
		}
		d.Close()
		break
	}
	got, err := io.ReadAll(c)
	if err != nil || string(got) != "answer" {
		t.Errorf("got %q %v", got, err)
	}
}

// A setup goes on when its connection is cut, and no line is told twice.
func TestSetupOverCutConnections(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.start()
	n := 0
	var lines []string
	_, err := b.client.Setup(t.Context(), driverapi.SetupRequest{Git: me, Commands: []string{"for i in $(seq 60); do echo line $i; sleep 0.02; done; echo once >> $HOME/once"}}, func(e driverapi.SetupEvent) {
		if n++; n == 10 || n == 30 {
			b.cut()
		}
		if strings.HasPrefix(e.Line, "line") {
			lines = append(lines, e.Line)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) != 60 || lines[0] != "line 1" || lines[59] != "line 60" {
		t.Errorf("%d lines: %q", len(lines), lines)
	}
	if once, err := os.ReadFile(filepath.Join(b.cfg.Home, "once")); err != nil || string(once) != "once\n" {
		t.Errorf("the setup ran more than once: %q %v", once, err)
	}
}

func TestSetupFailureIsTold(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.start()
	_, last, err := b.setup(driverapi.SetupRequest{Commands: []string{"echo the reason; exit 3"}})
	f := fault.From(err)
	if f.Code != fault.SetupFailed || !strings.Contains(f.Message, "exit status 3") || f.Details["output"] != "the reason\n" || !last.Done {
		t.Errorf("%v %+v", err, f.Details)
	}
	if _, _, err := b.setup(driverapi.SetupRequest{}); err != nil {
		t.Errorf("again: %v", err)
	}
	r := packRequest("")
	if p, _ := b.pack(r); p.Changed || p.Head != "" {
		t.Errorf("pack of nothing: %+v", p)
	}
}
