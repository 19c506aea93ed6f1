package driver_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/acp"
	"github.com/hearthd/hearth/internal/driver/convert"
	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/operation/rest/resttest"
	"github.com/hearthd/hearth/internal/recorder"
	"github.com/hearthd/hearth/internal/session"
	"github.com/hearthd/hearth/internal/transcript"
	"github.com/hearthd/hearth/internal/uistream"
)

// replayEnv makes the agent say what a recording of a real one has.
const replayEnv = "AGENT_RECORDING"

// web is a client of this package's own, see [http.DefaultClient].
var web = &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}

// line is one message of a recording.
type line struct {
	Proc int    `json:"proc"`
	Dir  string `json:"dir"`
	Msg  struct {
		ID     json.RawMessage `json:"id,omitempty"`
		Method string          `json:"method,omitempty"`
		Params json.RawMessage `json:"params,omitempty"`
		Result json.RawMessage `json:"result,omitempty"`
		Error  json.RawMessage `json:"error,omitempty"`
	} `json:"msg"`
}

// recordedTurn is what an agent said from a prompt to its answer, or its end.
type recordedTurn struct {
	said   []line
	answer *line // nil: it was killed
}

func recording(file string) ([]recordedTurn, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var (
		out    []recordedTurn
		cur    *recordedTurn
		prompt string
		proc   int
	)
	end := func() {
		if cur != nil {
			out, cur = append(out, *cur), nil
		}
	}
	for l := range bytes.Lines(raw) {
		var m line
		if err := json.Unmarshal(l, &m); err != nil {
			return nil, err
		}
		if m.Proc != proc {
			end()
		}
		proc = m.Proc
		switch {
		case m.Dir == "client->agent" && m.Msg.Method == acp.MethodSessionPrompt:
			cur, prompt = &recordedTurn{}, string(m.Msg.ID)
		case m.Dir == "client->agent" || cur == nil:
		case m.Msg.Method == "" && string(m.Msg.ID) == prompt:
			cur.answer = &m
			end()
		default:
			cur.said = append(cur.said, m)
		}
	}
	end()
	return out, nil
}

// runReplay is an agent that answers each prompt with a turn of the recording. Which one
// is next is kept in its home.
func runReplay(file string) error {
	turns, err := recording(file)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	type object = map[string]any
	in := bufio.NewReader(os.Stdin)
	read := func() (m struct {
		ID     json.RawMessage
		Method string
		Result json.RawMessage
	}, err error,
	) {
		l, err := in.ReadBytes('\n')
		if err != nil {
			return m, err
		}
		return m, json.Unmarshal(l, &m)
	}
	for {
		m, err := read()
		if err != nil {
			return nil // the input ended
		}
		switch m.Method {
		case acp.MethodInitialize:
			err = out.Encode(object{"jsonrpc": "2.0", "id": m.ID, "result": object{"protocolVersion": 1, "agentCapabilities": object{}}})
		case acp.MethodSessionNew:
			err = out.Encode(object{"jsonrpc": "2.0", "id": m.ID, "result": object{"sessionId": "s"}})
		case acp.MethodSessionPrompt:
			err = replayTurn(turns, out, m.ID, func() (string, error) {
				a, err := read()
				return string(a.ID), err
			})
		}
		if err != nil {
			return err
		}
	}
}

func replayTurn(turns []recordedTurn, out *json.Encoder, id json.RawMessage, answer func() (string, error)) error {
	mark := filepath.Join(os.Getenv("HOME"), "replayed")
	done, _ := os.ReadFile(mark)
	if err := os.WriteFile(mark, append(done, 'x'), 0o600); err != nil {
		return err
	}
	turn := turns[len(done)]
	for _, l := range turn.said {
		m := map[string]any{"jsonrpc": "2.0", "method": l.Msg.Method, "params": ours(l.Msg.Params)}
		if l.Msg.ID != nil {
			m["id"] = l.Msg.ID
		}
		if err := out.Encode(m); err != nil {
			return err
		}
		if l.Msg.ID != nil {
			if got, err := answer(); err != nil || got != string(l.Msg.ID) {
				return fmt.Errorf("the answer to %s is for %s: %w", l.Msg.ID, got, err)
			}
		}
	}
	if turn.answer == nil {
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	m := map[string]any{"jsonrpc": "2.0", "id": id, "result": turn.answer.Msg.Result}
	if turn.answer.Msg.Error != nil {
		m = map[string]any{"jsonrpc": "2.0", "id": id, "error": turn.answer.Msg.Error}
	}
	return out.Encode(m)
}

// ours is a recorded message's params with the session of the replay.
func ours(params json.RawMessage) json.RawMessage {
	var m map[string]json.RawMessage
	if json.Unmarshal(params, &m) != nil || m["sessionId"] == nil {
		return params
	}
	m["sessionId"] = json.RawMessage(`"s"`)
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// The whole way of what agents said: a recording, replayed by a process, through driver,
// log, recorder, store and stream. What a viewer gets is byte for byte what is stored, and
// that is what the driver wrote with secrets masked; what the driver wrote is what the
// conversion of the recording gives.
func TestRecordingsGoTheWholeWay(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("convert/testdata/recordings/*.jsonl")
	if err != nil || len(files) < 19 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	const lanes = 4
	for lane := range lanes {
		t.Run(fmt.Sprint(lane), func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			b.start()
			b.mustSetup(nil)
			w := resttest.New(t)
			for i := lane; i < len(files); i += lanes {
				b.replay(t, w, files[i])
			}
		})
	}
}

func (b *box) replay(t *testing.T, w *resttest.World, file string) {
	t.Helper()
	name := strings.TrimSuffix(filepath.Base(file), ".jsonl")
	file, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	turns, err := recording(file)
	if err != nil || len(turns) == 0 {
		t.Fatalf("%s: %d turns, %v", name, len(turns), err)
	}
	home := filepath.Join(b.dir, name)
	secret := []byte("will write the file") // some agents say it in two pieces
	r := record(t, b, w, [][]byte{secret})
	for i := 1; i < len(turns); i++ {
		r.w.Prompt(r.id, fmt.Sprintf("prompt %d", i+1))
	}
	viewer := r.view("0.0")
	var driven []transcript.Part
	for i, turn := range turns {
		req := b.agentRequest(replayEnv+"="+file, "HOME="+home)
		req.Fingerprint, req.Dir = name, home
		if _, err := b.client.Agent(t.Context(), req); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		id, o := r.turn(func(req *driverapi.TurnRequest) { req.Fingerprint = name })
		var parts []json.RawMessage
		for _, rec := range o.records {
			if rec.Part != nil {
				parts = append(parts, rec.Part)
			}
		}
		if want := converted(t, id, turn); cmp.Diff(want, plain(parts)) != "" {
			t.Errorf("%s, turn %d: the driver's parts differ from those of the recording: %s", name, i+1, cmp.Diff(want, plain(parts)))
		}
		mask := transcript.NewMasker([][]byte{secret})
		var masked []transcript.Numbered
		for n, p := range parts {
			masked = append(masked, mask.Add(int64(n+1), p)...)
		}
		for _, p := range append(masked, mask.Flush()...) {
			driven = append(driven, transcript.Part{Cursor: transcript.Cursor{Turn: int64(i + 1), Part: p.N}, Body: p.Body})
		}
	}
	stored := r.w.Transcript(r.id)
	seen := <-viewer
	if d := cmp.Diff(texts(stored), seen.events); d != "" || seen.err != nil || !seen.done {
		t.Errorf("%s: done %v, error %v, what was seen is not what is stored: %s", name, seen.done, seen.err, d)
	}
	var own []transcript.Part // without what the server adds at the ends
	last := map[int64]int64{}
	for _, p := range driven {
		last[p.Cursor.Turn] = p.Cursor.Part
	}
	for _, p := range stored {
		if p.Cursor.Part <= last[p.Cursor.Turn] {
			own = append(own, p)
		}
	}
	if d := cmp.Diff(texts(driven), texts(own)); d != "" {
		t.Errorf("%s: what is stored is not what the driver wrote: %s", name, d)
	}
	if all := strings.Join(texts(stored), "\n"); strings.Contains(all, string(secret)) {
		t.Errorf("%s: the secret is in it", name)
	}
}

// converted is what the conversion makes of a recorded turn, as plain gives it.
func converted(t *testing.T, id string, turn recordedTurn) []string {
	t.Helper()
	epoch := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	c := convert.New(id, func() time.Time { return epoch }, convert.Options{})
	var out []json.RawMessage
	take := func(parts []uistream.Part) {
		for _, p := range parts {
			out = append(out, p.Raw)
		}
	}
	take(c.Begin())
	for _, l := range turn.said {
		var n acp.SessionNotification
		if l.Msg.Method == acp.MethodSessionUpdate && acp.Decode(ours(l.Msg.Params), &n) == nil {
			take(c.Update(n.Update))
		}
	}
	e := convert.End{Failure: "it was killed"}
	if turn.answer != nil {
		var r acp.PromptResponse
		if err := acp.Decode(turn.answer.Msg.Result, &r); err != nil {
			t.Fatal(err)
		}
		e = convert.End{StopReason: r.StopReason, Usage: r.Usage}
	}
	take(c.End(e))
	return plain(out)
}

// plain leaves out what depends on the time of day and on how fast a machine is: times,
// outputs that others replace, where among the others an output comes, the words of a
// failure, and the rung, which is not the agent's.
func plain(parts []json.RawMessage) []string {
	var out, outputs []string
	for _, p := range parts {
		var m map[string]any
		if err := json.Unmarshal(p, &m); err != nil {
			return []string{err.Error()}
		}
		if m["type"] == "data-rung" || m["preliminary"] == true {
			continue
		}
		if s, ok := m["errorText"].(string); ok && strings.HasPrefix(s, "Interrupted") {
			m["errorText"] = "Interrupted"
		}
		drop(m)
		b, err := json.Marshal(m)
		if err != nil {
			return []string{err.Error()}
		}
		if strings.HasPrefix(fmt.Sprint(m["type"]), "tool-output") {
			outputs = append(outputs, string(b))
			continue
		}
		out = append(out, string(b))
	}
	slices.Sort(outputs)
	return append(out, outputs...)
}

func drop(v any) {
	switch v := v.(type) {
	case map[string]any:
		delete(v, "at")
		delete(v, "endAt")
		for _, x := range v {
			drop(x)
		}
	case []any:
		for _, x := range v {
			drop(x)
		}
	}
}

func texts(parts []transcript.Part) []string {
	var out []string
	for _, p := range parts {
		out = append(out, p.Cursor.String()+" "+string(p.Body))
	}
	return out
}

// recording of one session: the server's side of a box, with the real recorder, store,
// hub and HTTP surface.
type recordedSession struct {
	t   *testing.T
	b   *box
	w   *resttest.World
	id  session.ID
	rec *recorder.Recorder
}

func record(t *testing.T, b *box, w *resttest.World, secrets [][]byte) *recordedSession {
	t.Helper()
	return &recordedSession{t: t, b: b, w: w, id: w.Create("prompt 1"), rec: &recorder.Recorder{
		Sessions: w.Sessions, Log: w.Sessions.Log, Publish: w.Hub.Publish, Stored: w.Hub.Stored, Now: time.Now,
		Slog: slog.New(slog.DiscardHandler), Secrets: func() [][]byte { return secrets },
	}}
}

// begin gives the open turn to the driver.
func (r *recordedSession) begin(change func(*driverapi.TurnRequest)) *session.Turn {
	r.t.Helper()
	a := r.w.Get(r.id)
	if a.Open == nil { // held after a turn that failed
		if _, err := r.w.Sessions.Release(r.t.Context(), r.w.Owner(), r.id); err != nil {
			r.t.Fatal(err)
		}
		a = r.w.Get(r.id)
	}
	if a.Session.Sandbox == session.SandboxStarting {
		r.w.Apply(r.id, session.SandboxCreated{Generation: a.Session.Generation, Handle: `{}`})
		r.w.Apply(r.id, session.SandboxReady{Generation: a.Session.Generation})
	}
	r.w.Apply(r.id, session.Handed{Turn: a.Open.ID, Agent: a.Session.Agent})
	req := turnRequest(a.Open.Prompt)
	if change != nil {
		change(&req)
	}
	r.b.begin(string(a.Open.ID), req)
	return a.Open
}

func (r *recordedSession) record(ctx context.Context, t *session.Turn) error {
	return r.rec.Record(ctx, r.b.client, r.id, *t, func() recorder.Told { return recorder.Told{} })
}

// turn carries the open turn through driver and recorder to its end.
func (r *recordedSession) turn(change func(*driverapi.TurnRequest)) (string, outcome) {
	r.t.Helper()
	turn := r.begin(change)
	if err := r.record(r.t.Context(), turn); err != nil {
		r.t.Fatal(err)
	}
	r.finish(turn)
	return string(turn.ID), r.b.follow(string(turn.ID), nil)
}

// finish delivers what the agent has left.
func (r *recordedSession) finish(turn *session.Turn) {
	r.t.Helper()
	open := func() bool { a := r.w.Get(r.id); return a.Open != nil && a.Open.ID == turn.ID }
	if open() {
		r.w.Apply(r.id, session.Packed{Turn: turn.ID, OID: fmt.Sprintf("%040d", turn.Number), Commits: 1})
	}
	if open() {
		r.w.Apply(r.id, session.PushSent{Turn: turn.ID})
		r.w.Apply(r.id, session.Delivered{Turn: turn.ID, Delivery: session.Delivery{State: session.DeliveryPushed, OID: fmt.Sprintf("%040d", turn.Number), At: time.Now()}, RemoteOID: fmt.Sprintf("%040d", turn.Number)})
	}
}

// seen is what a viewer got: "turn.part body" each.
type seen struct {
	events []string
	done   bool
	err    error
}

// view follows the session's stream after a part.
func (r *recordedSession) view(last string) <-chan seen {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.w.URL+"/v1/agent-sessions/"+string(r.id)+"/stream", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+resttest.Token)
	req.Header.Set("Last-Event-ID", last)
	res, err := web.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	out := make(chan seen, 1)
	go func() { // ends with the stream
		defer res.Body.Close()
		var s seen
		d := uistream.NewDecoder(res.Body, 0)
		for {
			e, err := d.Next()
			if err != nil {
				if !errors.Is(err, io.EOF) {
					s.err = err
				}
				out <- s
				return
			}
			switch {
			case e.Done:
				s.done = true
			case e.Comment == "":
				s.events = append(s.events, e.ID+" "+string(e.Data))
			}
		}
	}()
	return out
}
