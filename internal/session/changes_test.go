package session

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestChanged(t *testing.T) {
	t.Parallel()
	turn := func(id TurnID, s TurnState) *Turn { return &Turn{ID: id, State: s, Prompt: "p"} }
	asked := &Question{ID: "q", State: QuestionPending}
	for _, c := range []struct {
		name    string
		was, is Aggregate
		want    []Kind
	}{
		{"nothing of these", Aggregate{}, Aggregate{Session: Session{Title: "x"}}, nil},
		{"a question", Aggregate{}, Aggregate{Questions: []*Question{asked}}, []Kind{KindQuestion}},
		{"the same question", Aggregate{Questions: []*Question{asked}}, Aggregate{Questions: []*Question{{ID: "q", State: QuestionPending}}}, nil},
		{"an answer", Aggregate{Questions: []*Question{asked}}, Aggregate{Questions: []*Question{{ID: "q", State: QuestionDone}}}, []Kind{KindQuestion}},
		{"one more waits", Aggregate{}, Aggregate{Queue: []*Turn{turn("a", TurnAccepted)}}, []Kind{KindQueue}},
		{"another order", Aggregate{Queue: []*Turn{turn("a", TurnAccepted), turn("b", TurnAccepted)}}, Aggregate{Queue: []*Turn{turn("b", TurnAccepted), turn("a", TurnAccepted)}}, []Kind{KindQueue}},
		{"other words", Aggregate{Queue: []*Turn{turn("a", TurnAccepted)}}, Aggregate{Queue: []*Turn{{ID: "a", Prompt: "q"}}}, []Kind{KindQueue}},
		{"held", Aggregate{}, Aggregate{Session: Session{QueueHeld: true}}, []Kind{KindQueue}},
		{"sandbox", Aggregate{Session: Session{Sandbox: SandboxStarting}}, Aggregate{Session: Session{Sandbox: SandboxHot}}, []Kind{KindStart}},
		{"another sandbox", Aggregate{Session: Session{Sandbox: SandboxHot, Generation: 1}}, Aggregate{Session: Session{Sandbox: SandboxHot, Generation: 2}}, []Kind{KindStart}},
		{"the agent has begun", Aggregate{Open: turn("a", TurnStarting)}, Aggregate{Open: turn("a", TurnRunning)}, []Kind{KindStart}},
		{"the next starts", Aggregate{Open: turn("a", TurnRunning), Queue: []*Turn{turn("b", TurnAccepted)}}, Aggregate{Open: turn("b", TurnStarting)}, []Kind{KindQueue, KindStart}},
		{"it ends", Aggregate{Open: turn("a", TurnRunning)}, Aggregate{}, nil},
	} {
		want := append([]Kind{KindSession}, c.want...)
		if d := cmp.Diff(want, changed(&c.was, &c.is)); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}
