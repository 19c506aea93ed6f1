package convert

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hearthd/hearth/internal/uistream"
)

// An agent whose model request broke in the middle of an answer asks again and
// streams the answer from its start. What was shown stays, and a data-superseded
// part marks it: {from, to} are the numbers of the first and last delta of the older
// run. Agents do so in a new message, or go on in the same one, with or without a
// remark of their harness between.
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
	noticed bool    // the harness made a remark since the last delta
	dull    bool    // the block is made of a piece again and again
}

// next begins a block.
func (r *runs) next() {
	r.merge()
	if r.now.size >= runLeast {
		if len(r.formers) == runsFormer {
			r.formers = r.formers[1:]
		}
		r.formers = append(r.formers, &former{run: r.now})
	}
	for _, f := range r.formers {
		f.matched = 0
	}
	r.now, r.noticed, r.dull = run{}, false, false
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

// add takes a delta and returns the runs that came again with it.
func (r *runs) add(text string, from, to int64) (again []run) {
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
	if r.inside != nil {
		if gone, is := r.inside.take(text); is {
			again = append(again, r.inside.run)
			r.inside = nil
		} else if gone {
			r.merge()
		}
	}
	if r.inside == nil && len(again) == 0 && r.mayComeAgain(text) {
		f := &former{run: r.now, whole: !r.noticed}
		if gone, is := f.take(text); is {
			again, r.now = append(again, f.run), run{}
		} else if !gone {
			r.inside, r.now = f, run{}
		}
	}
	r.now.add(text, from, to)
	r.noticed = false
	return again
}

// mayComeAgain tells whether the text of the block so far may be streamed anew from here.
func (r *runs) mayComeAgain(text string) bool {
	n := min(len(r.now.text), len(text))
	switch {
	case r.now.size < runLeast || r.now.text[:n] != text[:n]:
		return false
	case r.noticed:
		return true
	}
	if r.now.size < runInBlock || !r.now.cut || r.dull {
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

// said follows a delta of the open block and marks what it streams again.
func (c *Converter) said(k uistream.BlockKind, text string, from int64) {
	for _, old := range c.runs[k].add(text, from, c.number()) {
		c.data(uistream.Data{Name: uistream.DataSuperseded, Data: uistream.ValueOf(map[string]int64{"from": old.from, "to": old.to})})
	}
}

// number is that of the newest part.
func (c *Converter) number() int64 { return c.base + int64(len(c.out)) }

// turned forgets all runs: the agent did something else than speak.
func (c *Converter) turned() {
	c.runs = map[uistream.BlockKind]*runs{uistream.Text: {}, uistream.Reasoning: {}}
}
