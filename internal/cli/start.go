package cli

import (
	"context"
	"time"

	"github.com/hearthd/hearth/client"
	"github.com/hearthd/hearth/internal/uistream"
)

// starting is the start of a sandbox that is shown, because it takes long. The
// conversation has nothing of it: the session is asked.
type starting struct {
	turn    string // whose start it is; empty: none is shown
	step    string
	elapsed time.Duration
	at      time.Time // when that was
}

func (s *starting) took(now time.Time) time.Duration { return s.elapsed + max(0, now.Sub(s.at)) }

// watchStart looks at the session while nothing comes, until ctx ends.
func (f *following) watchStart(ctx context.Context, a *app) {
	tick := time.NewTicker(a.SlowStart)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		f.mu.Lock()
		working, parts := f.working, f.parts
		f.mu.Unlock()
		if working {
			continue
		}
		c, cancel := context.WithTimeout(ctx, 10*time.Second)
		s, err := f.c.Get(c, f.session.ID)
		cancel()
		if err != nil {
			continue // the stream tells what becomes of the connection
		}
		f.mu.Lock()
		if !f.working && f.parts == parts && ctx.Err() == nil {
			f.look(&s, a)
		}
		f.mu.Unlock()
	}
}

// look shows what the session says of a start; f.mu is held.
func (f *following) look(s *client.Session, a *app) {
	t := s.OpenTurn
	if t == nil || f.turn != "" && t.ID != f.turn {
		return
	}
	if p := s.Sandbox.Start; p != nil {
		elapsed := time.Duration(p.ElapsedMs) * time.Millisecond
		if f.start.turn == "" && elapsed < a.SlowStart {
			return
		}
		fresh := f.start.turn != t.ID || f.start.step != p.Step
		f.start = starting{turn: t.ID, step: p.Step, elapsed: elapsed, at: a.Now()}
		f.out.starting(t.ID, p.Step, elapsed, fresh)
		return
	}
	if f.start.turn == t.ID && t.State != "stopping" {
		f.out.started(t.ID, true, f.start.took(a.Now()))
		f.start = starting{}
	}
}

// startGoesOn ends what is shown of a start when the turn's message tells how it
// went: a message that has nothing but its end never had a sandbox. f.mu is held.
func (f *following) startGoesOn(e client.Event) {
	if f.start.turn == "" {
		return
	}
	switch e.Type {
	case string(uistream.TypeStart), string(uistream.DataType(uistream.DataUserPrompt)):
		return
	}
	ok := e.Type != string(uistream.DataType(uistream.DataTurnEnd))
	f.out.started(f.start.turn, ok, f.start.took(f.now()))
	f.start = starting{}
}

// quiet keeps the start of a further turn from being shown: the stream has ended.
func (f *following) quiet() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.working = true
}

func (j jsonSink) starting(turn, step string, took time.Duration, fresh bool) {
	if fresh {
		_ = j.line(map[string]any{"event": "start", "turn": turn, "state": "begun", "step": step, "elapsedMs": took.Milliseconds()})
	}
}

func (j jsonSink) started(turn string, ok bool, took time.Duration) {
	state := "done"
	if !ok {
		state = "failed"
	}
	_ = j.line(map[string]any{"event": "start", "turn": turn, "state": state, "elapsedMs": took.Milliseconds()})
}

// startLine is what may still be written over while a start goes on; no call has this id.
const startLine = "\x00start"

func (t *textSink) starting(_, step string, took time.Duration, fresh bool) {
	what := "Starting the sandbox, with the repository and its setup commands"
	switch step {
	case "sandbox":
		what = "Starting the sandbox"
	case "clone":
		what = "Fetching the repository into the sandbox"
	case "setup":
		what = "Running the repository's setup commands"
	}
	switch {
	case t.live:
		if t.pending == startLine {
			t.write("\r\x1b[K")
		} else {
			t.fresh()
		}
		t.write("  " + t.st.dim("… "+what+" "+seconds(took)))
		t.pending = startLine
	case fresh:
		t.line("  %s", t.st.dim("… "+what))
	}
}

func (t *textSink) started(_ string, ok bool, took time.Duration) {
	s := "  " + t.st.good("✓") + " The sandbox is ready "
	if !ok {
		s = "  " + t.st.bad("✗") + " The sandbox did not become ready "
	}
	s += t.st.dim(seconds(took))
	if t.pending == startLine {
		t.write("\r\x1b[K" + s + "\n")
		t.pending = ""
		return
	}
	t.line("%s", s)
}
