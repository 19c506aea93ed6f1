package convert_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/driver/convert"
	"github.com/hearthd/hearth/internal/uistream"
	"github.com/hearthd/hearth/internal/uistream/npmtest"
)

const (
	half  = "I will look at the three files first and then "
	whole = half + "tell what each of them is for."
)

// superseded is the text that each data-superseded part marks, with its kind: by the numbers of
// deltas, and the same by the parts of the message.
func (x *turn) superseded() []string {
	x.t.Helper()
	m := uistream.NewMessage("turn_1")
	for _, p := range x.parts {
		if err := m.Add(p.Raw); err != nil {
			x.t.Fatal(err)
		}
	}
	var blocks []*uistream.MessagePart
	for _, p := range m.Parts() {
		if p.Kind() == "text" || p.Kind() == "reasoning" {
			blocks = append(blocks, p)
		}
	}
	var out []string
	for i, p := range x.parts {
		if p.Type != uistream.DataType(uistream.DataSuperseded) {
			continue
		}
		var d struct {
			Data struct{ From, To, Block int64 }
		}
		if err := p.Decode(&d); err != nil {
			x.t.Fatal(err)
		}
		from, to, block := d.Data.From, d.Data.To, d.Data.Block
		if from < 1 || to < from || to > int64(i) {
			x.t.Fatalf("part %d marks %d to %d", i+1, from, to)
		}
		kind := x.parts[from-1].Type
		if x.parts[to-1].Type != kind || kind != uistream.TypeTextDelta && kind != uistream.TypeReasoningDelta {
			x.t.Fatalf("part %d marks from a %s to a %s", i+1, kind, x.parts[to-1].Type)
		}
		old := x.deltas(kind, from-1, to)
		if len(old) < 24 || !comesAgain(old, x.deltas(kind, to, int64(len(x.parts)))) {
			x.t.Fatalf("part %d marks %q, which does not come again", i+1, old)
		}
		if block < 1 || block > int64(len(blocks)) {
			x.t.Fatalf("part %d marks block %d of %d", i+1, block, len(blocks))
		}
		marked := blocks[block-1].Kind() + ": " + blocks[block-1].Text("text")
		if want := strings.TrimSuffix(string(kind), "-delta") + ": " + old; marked != want {
			x.t.Fatalf("part %d marks the deltas of %q and the block %q", i+1, want, marked)
		}
		out = append(out, marked)
	}
	return out
}

// comesAgain tells whether anew has the beginning of old, or the run of which old has a
// second beginning, too.
func comesAgain(old, anew string) bool {
	for n := min(len(old), 4096); n >= 24; n-- {
		if strings.Contains(anew, old[:n]) && (n >= 200 || strings.HasPrefix(old, old[n:])) {
			return true
		}
	}
	return false
}

func (x *turn) deltas(kind uistream.Type, from, to int64) string {
	var b strings.Builder
	for _, p := range x.parts[from:to] {
		if p.Type == kind {
			b.WriteString(p.Text("delta"))
		}
	}
	return b.String()
}

// pieces are updates that say a text as agents do, a few characters each.
func pieces(text, id string) []string {
	var out []string
	for r := []rune(text); len(r) > 0; r = r[min(len(r), 11):] {
		out = append(out, chunk(string(r[:min(len(r), 11)]), id))
	}
	return out
}

func thoughts(text string) []string {
	var out []string
	for _, p := range pieces(text, "") {
		out = append(out, strings.Replace(p, "message_chunk", "thought_chunk", 1))
	}
	return out
}

func join(lists ...[]string) []string {
	var out []string
	for _, l := range lists {
		out = append(out, l...)
	}
	return out
}

// What the agents do when their model's answer breaks off in the middle, as was seen
// with a scripted model that cut its connection: Claude begins a new message at once,
// Codex tells of it and then does, pi goes on in the same text after a remark.
func TestTextThatComesAgainIsMarked(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("This sentence is one of many. ", 10) + "And here is the "
	other := `{"sessionUpdate":"session_info_update","_meta":{"codex":{"error":{"message":"Reconnecting... 1/5"}}}}`
	usage := `{"sessionUpdate":"usage_update","used":1,"size":2}`
	for name, c := range map[string]struct {
		say  []string
		want []string
	}{
		"claude":                      {join(pieces(half, "m1"), pieces(whole, "m2")), []string{"text: " + half}},
		"codex":                       {join(pieces(half, "m1"), []string{other, usage}, pieces(whole, "m2")), []string{"text: " + half}},
		"pi":                          {join(pieces(half, ""), []string{chunk("Retrying (attempt 1/3, waiting 2s)...", "")}, pieces(whole, "")), []string{"text: " + half}},
		"pi, short":                   {join(pieces("I will look at all the fi", ""), []string{chunk("Retrying (attempt 1/3, waiting 2s)...", "")}, pieces("I will look at all the files.", "")), []string{"text: I will look at all the fi"}},
		"in one message":              {join(pieces(half+"tell which of them are for", "m"), pieces(half+"tell which of them are for tests.", "m")), []string{"text: " + half + "tell which of them are for" + half + "tell which of them a"}},
		"in one piece":                {[]string{chunk(half+"tell which of them are for", "m"), chunk(half+"tell which of them are for tests.", "m")}, []string{"text: " + half + "tell which of them are for"}},
		"a false beginning":           {join(pieces(half+"tell which of them are for", "m"), pieces(half, "m"), pieces(half+"tell which of them are for, and on.", "m")), nil},
		"in a block with other text":  {join(pieces(half, ""), []string{toolUpdate(`"status":"completed"`)}, pieces("Now ", ""), []string{`{"sessionUpdate":"plan","entries":[]}`}, pieces(half, ""), pieces(whole, "2")), nil},
		"three times":                 {join(pieces(half, "1"), pieces(half+"tell", "2"), pieces(whole, "3")), []string{"text: " + half, "text: " + half + "tell"}},
		"shorter the second time":     {join(pieces(half+"tell", "1"), pieces(half, "2"), pieces(whole, "3")), []string{"text: " + half + "tell", "text: " + half}},
		"thoughts and text":           {join(thoughts(half), pieces(half, ""), thoughts(whole), pieces(whole, "")), []string{"reasoning: " + half, "text: " + half}},
		"other words at the end":      {join(pieces(long+"point", "1"), pieces(long+"matter: none.", "2")), []string{"text: " + long + "point"}},
		"longer than is kept":         {join(pieces(strings.Repeat(long, 20), "1"), pieces(strings.Repeat(long, 20)+" x", "2")), []string{"text: " + strings.Repeat(long, 20)}},
		"a sentence, and then more":   {join(pieces(whole, "1"), pieces(whole+" More.", "2")), []string{"text: " + whole}},
		"after a remark of its own":   {join(pieces(half, "1"), pieces("The connection broke, I begin anew.", "2"), pieces(whole, "3")), []string{"text: " + half}},
		"after a tool, twice":         {join(pieces("Done.", "0"), []string{toolUpdate(`"status":"completed"`)}, pieces(half, "1"), pieces(whole, "2")), []string{"text: " + half}},
		"a tool between":              {join(pieces(half, "1"), []string{toolUpdate(`"status":"completed"`)}, pieces(whole, "2")), nil},
		"a plan between":              {join(pieces(half, "1"), []string{`{"sessionUpdate":"plan","entries":[]}`}, pieces(whole, "2")), nil},
		"an image between":            {join(pieces(half, "1"), []string{`{"sessionUpdate":"agent_message_chunk","content":{"type":"image","data":"AAAA","mimeType":"image/png"}}`}, pieces(whole, "2")), nil},
		"too short":                   {join(pieces("I will look", "1"), pieces("I will look at it.", "2")), nil},
		"said twice":                  {join(pieces(whole, "1"), pieces(whole, "2")), nil},
		"said twice in one message":   {join(pieces(whole, ""), pieces(whole+" x", "")), nil},
		"lines alike":                 {join(pieces(strings.Repeat("- [ ] write the test of it\n", 40), "")), nil},
		"steps":                       {join(pieces(strings.Repeat("and again ", 400), "")), nil},
		"thought, then said":          {join(thoughts(half), pieces(whole, "")), nil},
		"the same beginning":          {join(pieces("I will look at the files and at the tests", "1"), pieces("I will look at the files and mend them.", "2")), nil},
		"the other way round":         {join(pieces(whole, "1"), pieces(half, "2")), nil},
		"a table":                     {pieces("| a | b |\n"+strings.Repeat("| --- | --- |\n| one more row | of a table |\n", 30), ""), nil},
		"a remark and something else": {join(pieces(half, ""), []string{chunk("Retrying (attempt 1/3)", "")}, pieces("I have read them all and they are fine.", "")), nil},
	} {
		x := begin(t, convert.Options{NoisePrefixes: []string{"Retrying (attempt "}})
		for _, u := range c.say {
			x.say(u)
		}
		x.end(convert.End{})
		if d := cmp.Diff(c.want, x.superseded()); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// A page of the AI SDK has the older run and the newer one as parts of their own.
func TestRunsAreParts(t *testing.T) {
	t.Parallel()
	old := half + "tell which of them are for"
	var streams []npmtest.Stream
	want := map[string][]string{}
	for name, c := range map[string]struct {
		say  []string
		want []string
	}{
		"in-a-new-message": {join(pieces(half, "1"), pieces(whole, "2")), []string{"text old: " + half, "text: " + whole}},
		"after-a-remark":   {join(pieces(half, ""), []string{chunk("Retrying (attempt 1/3)", "")}, pieces(whole, "")), []string{"text old: " + half, "text: " + whole}},
		"in-one-message":   {join(pieces(old, "m"), pieces(old+" tests: \u00e9", "m")), []string{"text old: " + old + old[:66], "text: " + old + " tests: \u00e9"}},
		"thoughts":         {join(thoughts(old), thoughts(old+" tests."), pieces(whole, "")), []string{"reasoning old: " + old + old[:66], "reasoning: " + old + " tests.", "text: " + whole}},
		"three-times":      {join(pieces(half, "1"), []string{toolUpdate(`"status":"completed"`)}, pieces(half, "2"), thoughts("Hm."), pieces(half+"tell", "3"), pieces(whole, "4")), []string{"text: " + half, "text old: " + half, "reasoning: Hm.", "text old: " + half + "tell", "text: " + whole}},
		"not-plain-text":   {join(pieces(old, "m"), pieces(old[:44], "m"), []string{chunk("\x1b[1m"+old[44:]+" tests.", "m")}), []string{"text: " + old + old + " tests."}},
	} {
		x := begin(t, convert.Options{NoisePrefixes: []string{"Retrying"}})
		for _, u := range c.say {
			x.say(u)
		}
		x.end(convert.End{})
		x.superseded()
		streams = append(streams, npmtest.Stream{Name: name, Parts: append(x.parts, uistream.Finish{FinishReason: uistream.FinishStop}.Part())})
		want[name] = c.want
	}
	for _, line := range npmtest.Lines {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			for name, r := range npmtest.Read(t, line, streams) {
				if r.Error != "" || len(r.Messages) != 1 {
					t.Fatalf("%s: %d messages, %s", name, len(r.Messages), r.Error)
				}
				var got []string
				for _, p := range r.Messages[0].Parts {
					if p.Type == "text" || p.Type == "reasoning" {
						got = append(got, p.Type+": "+p.Text)
					}
				}
				for _, p := range r.Messages[0].Parts {
					var d struct{ Block int }
					if p.Type == "data-superseded" && json.Unmarshal(p.Data, &d) == nil {
						got[d.Block-1] = strings.Replace(got[d.Block-1], ": ", " old: ", 1)
					}
				}
				if d := cmp.Diff(want[name], got); d != "" {
					t.Errorf("%s: %s", name, d)
				}
			}
		})
	}
}

// The numbers are those of the turn's log, in which others write, too.
func TestSupersededNamesPartsOfTheLog(t *testing.T) {
	t.Parallel()
	last := int64(0)
	c := convert.New("turn_1", func() time.Time { return epoch }, convert.Options{Last: func() int64 { return last }})
	var got []json.RawMessage
	take := func(parts []uistream.Part) {
		for _, p := range parts {
			if last++; p.Type == uistream.DataType(uistream.DataSuperseded) {
				got = append(got, p.Raw)
			}
		}
	}
	take(c.Begin())
	last += 5 // somebody else's
	take(c.Update(json.RawMessage(chunk(half, "1"))))
	last++
	take(c.Update(json.RawMessage(chunk("!", "1"))))
	take(c.Update(json.RawMessage(chunk(half+"! And on.", "2"))))
	if len(got) != 1 || !strings.Contains(string(got[0]), `"data":{"block":1,"from":9,"to":11}`) {
		t.Errorf("got %s", got)
	}
}

// Ordinary prose, cut in messages and pieces at random, is not marked.
func TestOrdinaryTextIsNotMarked(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	words := strings.Fields("I will now look at the file and run the tests to see what fails there before we mend it in a small way that the others can read")
	for range 300 {
		x := begin(t, convert.Options{NoisePrefixes: []string{"Retrying"}})
		var said strings.Builder
		for m := range 1 + rng.IntN(6) {
			for range 1 + rng.IntN(40) {
				w := words[rng.IntN(len(words))] + " "
				said.WriteString(w)
				x.say(chunk(w, fmt.Sprint(m)))
			}
			if rng.IntN(3) == 0 {
				x.say(chunk("Retrying soon", fmt.Sprint(m)))
			}
		}
		x.end(convert.End{})
		if got := x.superseded(); len(got) > 0 {
			t.Fatalf("seed %d: in %q marked %q", seed, said.String(), got)
		}
	}
}

// FuzzSuperseded: whatever is said in whatever pieces, what is marked came again.
func FuzzSuperseded(f *testing.F) {
	f.Add(half+"\x00"+whole, uint8(11), "Retrying")
	f.Add(half+"\x01"+whole+"\x02"+whole, uint8(3), "")
	f.Add(strings.Repeat("ab", 200)+"\x01"+strings.Repeat("ab", 300), uint8(2), "ab")
	f.Fuzz(func(t *testing.T, said string, size uint8, noise string) {
		x := begin(t, convert.Options{NoisePrefixes: []string{noise}})
		id := 0
		for i := 0; i < len(said); {
			n := min(1+int(size)%32, len(said)-i)
			text := strings.ToValidUTF8(said[i:i+n], "")
			switch i += n; {
			case strings.ContainsRune(text, 0):
				id++
			case strings.ContainsRune(text, 1):
				x.say(thought(text))
			case strings.ContainsRune(text, 2):
				x.say(toolUpdate(`"status":"completed"`))
			}
			x.say(chunk(text, fmt.Sprint(id)))
		}
		x.end(convert.End{})
		x.superseded()
	})
}
