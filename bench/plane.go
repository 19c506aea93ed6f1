package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/testkit/numbered"
)

// plane is a server with conversations that people watch: Hearth, a peer, or the
// floor. It is used by one goroutine at a time.
type plane interface {
	// open makes a conversation that takes prompts. warm: its agent is there.
	open(ctx context.Context, warm bool) (conversation, error)
	// text finds the agent's text in a line of a stream.
	text(line []byte) []byte
	// processes are the server's own.
	processes() []int
	close(ctx context.Context, cause error) error
}

// conversation is one of a plane.
type conversation interface {
	// say has the agent send numbered pieces. It returns when that is under way;
	// done is closed when the turn has ended, and failed then tells how.
	say(ctx context.Context, s numbered.Spec) (done <-chan struct{}, failed func() error, err error)
	// stream is the request for the events of the turn at work, from now on at least.
	stream(ctx context.Context) (*http.Request, error)
	close(ctx context.Context) error
}

// Planes by name.
const (
	planeHearth   = "hearth"
	planeShared   = "hearth with bubblewrap"
	planeSandbox  = "sandbox-agent"
	planeOpencode = "opencode"
	planeFloor    = "floor"
)

// newPlane starts a plane.
func (b *bench) newPlane(ctx context.Context, name string) (plane, error) {
	switch name {
	case planeHearth, planeShared:
		var args []string
		if name == planeShared {
			args = []string{"--sandbox", "bubblewrap"}
		}
		w, err := b.world(ctx, b.scripted, args...)
		if err != nil {
			return nil, err
		}
		if err := w.ready(ctx); err != nil {
			return nil, w.close(ctx, err)
		}
		return &ours{w}, nil
	case planeSandbox:
		return b.newSandboxAgent(ctx)
	case planeOpencode:
		return b.newOpencode(ctx)
	default:
		return newFloor()
	}
}

// ours is Hearth: the server that is shipped, its store on, the agent in a sandbox.
type ours struct{ *world }

func (o *ours) text(line []byte) []byte { return hearthText(line) }

var hearthText = jsonText(`"text-delta"`, "delta")

func (o *ours) processes() []int { return []int{o.proc.Process.Pid} }

func (o *ours) open(ctx context.Context, warm bool) (conversation, error) {
	a, err := o.create(ctx, client.CreateInput{FirstEventLimitSeconds: 600, SilenceLimitSeconds: 600})
	if err != nil {
		return nil, err
	}
	c := &ourConversation{w: o.world, id: a.Session.ID}
	if warm {
		_, err = o.prompt(ctx, c.id, "@@say hello@@")
	}
	return c, err
}

type ourConversation struct {
	w  *world
	id string
}

func (c *ourConversation) say(ctx context.Context, s numbered.Spec) (<-chan struct{}, func() error, error) {
	a, err := c.w.c.Prompt(ctx, c.id, client.PromptInput{Prompt: s.Directive()})
	if err != nil {
		return nil, nil, fmt.Errorf("prompt: %w", err)
	}
	done, failed := background(func() error {
		_, err := c.w.completed(ctx, c.id, a.Turn.ID)
		return err
	})
	return done, failed, nil
}

// background runs f; failed waits for it.
func background(f func() error) (done <-chan struct{}, failed func() error) {
	ch := make(chan struct{})
	var err error
	go func() { err = f(); close(ch) }() // failed waits for it
	return ch, func() error { <-ch; return err }
}

func (c *ourConversation) stream(ctx context.Context) (*http.Request, error) {
	return c.w.streamRequest(ctx, c.id, "")
}

func (w *world) streamRequest(ctx context.Context, id, query string) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.address+"/v1/agent-sessions/"+id+"/stream"+query, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+w.token)
	return r, nil
}

func (c *ourConversation) close(ctx context.Context) error { return c.w.remove(ctx, c.id) }

// floor keeps the events of a turn in memory and writes to each viewer what is
// new: what this program and loopback can do at most.
type floor struct {
	url  string
	stop func()

	mu    sync.Mutex
	more  *sync.Cond
	log   []byte
	ended bool
}

func newFloor() (*floor, error) {
	f := &floor{}
	f.more = sync.NewCond(&f.mu)
	var err error
	f.url, f.stop, err = listen(f)
	return f, err
}

func (f *floor) text(line []byte) []byte { return hearthText(line) }
func (f *floor) processes() []int        { return nil }

func (f *floor) close(_ context.Context, cause error) error {
	f.stop()
	return cause
}

func (f *floor) open(context.Context, bool) (conversation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log, f.ended = nil, false
	return &floorConversation{f}, nil
}

// ServeHTTP writes the log to its end.
func (f *floor) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	if rc.Flush() != nil {
		return
	}
	for at := 0; ; {
		f.mu.Lock()
		for at == len(f.log) && !f.ended {
			f.more.Wait()
		}
		part := f.log[at:min(len(f.log), at+64<<10)]
		f.mu.Unlock()
		if len(part) == 0 {
			return
		}
		at += len(part)
		if _, err := w.Write(part); err != nil || rc.Flush() != nil {
			return
		}
	}
}

type floorConversation struct{ f *floor }

func (c *floorConversation) say(ctx context.Context, s numbered.Spec) (<-chan struct{}, func() error, error) {
	c.f.mu.Lock()
	c.f.log, c.f.ended = make([]byte, 0, s.Count*(s.Bytes+100)), false
	c.f.mu.Unlock()
	done, failed := background(func() error {
		n := 0
		err := s.Run(ctx, time.Now, pause, func(piece []byte) error {
			n++
			c.f.mu.Lock()
			c.f.log = fmt.Appendf(c.f.log, "id: 1.%d\ndata: {\"type\":\"text-delta\",\"id\":\"text-1\",\"delta\":\"%s\"}\n\n", n, piece)
			c.f.mu.Unlock()
			c.f.more.Broadcast()
			return nil
		})
		c.f.mu.Lock()
		c.f.ended = true
		c.f.mu.Unlock()
		c.f.more.Broadcast()
		return err
	})
	return done, failed, nil
}

func (c *floorConversation) stream(ctx context.Context) (*http.Request, error) {
	return http.NewRequestWithContext(ctx, http.MethodGet, c.f.url, nil)
}

func (c *floorConversation) close(context.Context) error { return nil }

// rival tells whether a plane is somebody else's server.
func rival(name string) bool { return name == planeSandbox || name == planeOpencode }

// planes are those of a row: what is asked for by -peers, and there.
func (b *bench) planes(all ...string) []string {
	var out []string
	for _, name := range all {
		if !rival(name) || contains(b.wanted, name) {
			out = append(out, name)
		}
	}
	return out
}

func contains(list, name string) bool {
	for n := range strings.SplitSeq(list, ",") {
		if strings.TrimSpace(n) == name {
			return true
		}
	}
	return false
}

// each starts planes, lets f work with them, and ends them all.
func (b *bench) each(ctx context.Context, names []string, f func(map[string]plane) error) (err error) {
	up := map[string]plane{}
	defer func() {
		for _, name := range names {
			if p := up[name]; p != nil {
				err = errors.Join(err, p.close(ctx, nil))
			}
		}
	}()
	for _, name := range names {
		p, err := b.newPlane(ctx, name)
		if err != nil {
			return fmt.Errorf("start %s: %w", name, err)
		}
		up[name] = p
	}
	return f(up)
}
