package session

import (
	"fmt"
	"strings"
)

//go:generate go test . -run SessionsDocument -update

// Markdown prints the machine's tables for docs/sessions.md, which a test holds
// against it.
func Markdown() string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	p("# Sessions and turns\n\nPrinted from the tables in `internal/session` (`go test ./internal/session -update`).\n\n")
	p("## A turn's states\n\n```mermaid\nstateDiagram-v2\n    [*] --> accepted\n")
	states := []TurnState{TurnAccepted, TurnStarting, TurnRunning, TurnWaiting, TurnStopping, TurnDelivering, TurnCompleted, TurnFailed, TurnCanceled}
	for _, from := range states {
		for _, to := range turnMoves[from] {
			p("    %s --> %s\n", from, to)
		}
		if from.Terminal() {
			p("    %s --> [*]\n", from)
		}
	}
	p("```\n\n`accepted` waits in the queue. `starting` waits for sandbox and agent. `waiting` needs a person's answer. `stopping` has been asked to end. ")
	p("`delivering`: the agent is done, its work is packed and pushed. Every other move is refused with `ILLEGAL_MOVE`.\n\n")
	p("## Turn and sandbox\n\nThe sandbox states that each open turn may have beside it. The database holds the same as a check.\n\n| open turn | sandbox |\n|---|---|\n")
	for _, t := range append([]TurnState{""}, states...) {
		if list, ok := pairs[t]; ok {
			words := make([]string, len(list))
			for i, s := range list {
				words[i] = "`" + string(s) + "`"
			}
			p("| %s | %s |\n", orNone(t), strings.Join(words, ", "))
		}
	}
	p("\n## Ends of a turn\n\n| end | state | the agent's process | packed | delivered | the queue |\n|---|---|---|---|---|---|\n")
	for _, r := range ends {
		dies, pack := "stays", "no"
		if r.AgentDies {
			dies = "ended, unless it answered a cancel"
		}
		if r.Pack {
			pack = "yes"
		}
		p("| `%s` | %s | %s | %s | %s | %s |\n", r.End, r.State, dies, pack, r.Deliver, r.Queue)
	}
	p("\nA held queue goes on with a new prompt or with `release`. A cancel holds it when it is asked, the other ends when they come. `hold` holds it by hand: the turn at work goes on, the next one waits. A prompt that is taken out of the queue ends as `never_started`, and stops nothing else. Work that waits for `deliver` also goes out with the next turn that ends well; `discard` drops it.\n\n")
	p("## Phases\n\nThe one word that people are shown, the first that fits: ")
	phases := []Phase{PhaseDeleting, PhaseArchived, PhaseStopping, PhaseWaiting, PhaseRunning, PhaseStarting, PhaseDelivering, PhaseQueued, PhaseFailed, PhaseAsleep, PhaseIdle}
	for i, f := range phases {
		if i > 0 {
			p(", ")
		}
		p("`%s`", f)
	}
	p(". `failed` means that the last turn failed; the session still takes prompts.\n")
	return b.String()
}
