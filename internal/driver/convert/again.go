package convert

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hearthd/hearth/internal/uistream"
)

// An agent whose model request broke in the middle of an answer asks again and
// streams the answer from its start. What was shown stays, and a data-superseded
// part marks it: {from, to, block}, the numbers of the first and last delta of the older
// run, and which of the turn's blocks it is. Agents do so in a new message, or go on in
// the same one, with or without a remark of their harness between.
//
// What is marked is always a whole block, since the messages of the AI SDK know of nothing
// smaller. Where a run comes again within its block and nothing tells where it
// begins, it is known only when much of it has come: then the block ends, all that it has is
// marked, and the next block has the newer run from its beginning.
//
// A run is marked only where its text comes again from its beginning, with no tool
// call, plan or content between: a text that a person reads as two is worse hidden
// than one shown twice.
const (
	runKept     = 4 << 10 // of a run's text; a longer one that is equal so far is equal
	runLeast    = 24      // bytes of a run that can be known again
	runEnough   = 200     // bytes that, streamed again, tell of a run that was cut
	runInBlock  = 64      // least bytes of a run within one message, with nothing between
	runsFormer  = 4       // older runs that are compared
	sentenceEnd = ".!?:;…)]}\"'`*|。！？"
)

// run is text that was streamed without a break.
type run struct {
	text     string // its beginning, at most runKept bytes
	size     int
	from, to int64
	block    int  // whose whole text it is, counted from 1; 0: it is less than a block
	cut      bool // it ends in mid-sentence
}

func (r *run) add(text string, from, to int64) {
	if r.size == 0 {
		r.from = from
	}
	r.to = to
	r.text += text[:min(len(text), runKept-len(r.text))]
	r.size += len(text)
	r.cut = midSentence(text)
}

// midSentence tells whether a text stops where nobody ends.
func midSentence(text string) bool {
	if strings.HasSuffix(text, "\n") {
		return false
	}
	text = strings.TrimRightFunc(text, unicode.IsSpace)
	last, _ := utf8.DecodeLastRuneInString(text)
	return text == "" || !strings.ContainsRune(sentenceEnd, last)
}

// former is a run that may come again.
type former struct {
	run
	whole   bool // all of it must come again, not only much
	matched int
}

// take compares what comes now; gone: it is something else. again: the run was
// streamed anew.
func (f *former) take(text string) (gone, again bool) {
	rest := f.text[f.matched:]
	n := min(len(rest), len(text))
	same := 0
	for same < n && rest[same] == text[same] {
		same++
	}
	f.matched += same
	enough := len(f.text)
	if f.cut && !f.whole {
		enough = min(enough, runEnough)
	}
	if f.matched >= enough && (f.cut || len(text) > same) {
		return true, true
	}
	return same < n, false
}

// runs follows the text of one kind.
type runs struct {
	now     run
	formers []*former
	inside  *former // the beginning of the open block, where the rest may be it again
	dull    bool    // the block is made of a piece again and again
}

// next begins a block.
func (r *runs) next(block int) {
	r.merge()
	if r.now.size >= runLeast && r.now.block > 0 {
		if len(r.formers) == runsFormer {
			r.formers = r.formers[1:]
		}
		r.formers = append(r.formers, &former{run: r.now})
	}
	for _, f := range r.formers {
		f.matched = 0
	}
	r.now, r.dull = run{block: block}, false
}

// merge gives up that the block holds a run twice.
func (r *runs) merge() {
	if f := r.inside; f != nil {
		now := r.now
		r.now = f.run
		r.now.add(now.text, now.from, now.to)
		r.now.size = f.size + now.size
		r.inside = nil
	}
}

// again compares what comes now with the blocks before and returns those that came again with it.
func (r *runs) again(text string) (again []run) {
	keep := r.formers[:0]
	for _, f := range r.formers {
		if f.matched < 0 {
			keep = append(keep, f)
			continue
		}
		gone, is := f.take(text)
		switch {
		case is:
			again = append(again, f.run)
		case gone && f.cut: // this is something between; a later block may be it
			f.matched = -1
			keep = append(keep, f)
		case gone:
		default:
			keep = append(keep, f)
		}
	}
	r.formers = keep
	return again
}

// within tells whether the open block holds a run and, with what comes now, the same run anew:
// old is all of the block, anew the newer run from its beginning. Text that is not plain is
// not looked at: the blob of its block has more of it than the text.
func (r *runs) within(text string, plain bool) (old run, anew string, ok bool) {
	if f := r.inside; f != nil {
		gone, is := f.take(text)
		switch {
		case is && plain:
			old, anew = f.run, r.now.text+text
			old.to = r.now.to
			r.now, r.inside = run{}, nil
			return old, anew, true
		case !gone && plain:
			return run{}, "", false
		}
		r.merge()
	}
	if !plain || !r.mayComeAgain(text) {
		return run{}, "", false
	}
	f := &former{run: r.now, whole: true}
	r.now = run{}
	if _, is := f.take(text); is {
		return f.run, text, true
	}
	r.inside = f
	return run{}, "", false
}

// mayComeAgain tells whether the text of the block so far may be streamed anew from here.
func (r *runs) mayComeAgain(text string) bool {
	n := min(len(r.now.text), len(text))
	if r.now.block == 0 || r.now.size < runInBlock || !r.now.cut || r.dull || r.now.text[:n] != text[:n] {
		return false
	}
	r.dull = periodic(r.now.text)
	return !r.dull
}

// periodic tells whether a text is made of a piece again and again.
func periodic(s string) bool {
	border := make([]int, len(s)) // of each beginning, the longest that is its end, too
	for i, k := 1, 0; i < len(s); i++ {
		for k > 0 && s[i] != s[k] {
			k = border[k-1]
		}
		if s[i] == s[k] {
			k++
		}
		border[i] = k
	}
	return len(s) > 0 && border[len(s)-1]*2 >= len(s)
}

// superseded marks a run that was streamed again.
func (c *Converter) superseded(old run) {
	c.data(uistream.Data{Name: uistream.DataSuperseded, Data: uistream.ValueOf(map[string]int64{"from": old.from, "to": old.to, "block": int64(old.block)})})
}

// number is that of the newest part.
func (c *Converter) number() int64 { return c.base + int64(len(c.out)) }

// turned forgets all runs: the agent did something else than speak. What a block that stays
// open has from here on is no run of its own.
func (c *Converter) turned() {
	c.runs = map[uistream.BlockKind]*runs{uistream.Text: {}, uistream.Reasoning: {}}
}
