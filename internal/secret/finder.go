package secret

// Finder finds any of a set of forms in one pass over a text. It is the automaton
// of Aho and Corasick: a state is the longest end of the text that begins a form.
// It never changes and may be used concurrently. Read texts with [Finder.Stream].
type Finder struct {
	// States are numbered breadth first, so that the states that ordinary text is in
	// come first. Those have a row: the next state for each class of bytes. The
	// others have only the edges of the tree and go back along fail for the rest.
	class [256]uint16 // 0: a byte that is in no form
	shift uint        // a row has 1<<shift entries
	rows  []int32
	dense int32 // number of states with a row

	firstEdge []int32 // of each state; one more at the end
	edgeByte  []byte
	edgeTo    []int32
	fail      []int32

	// skip says for a hash of three bytes how far ahead of the last of the first width
	// bytes of any form they are at least; 0: they are the last. It lets reading from
	// the first state on leave out most of a text. Without forms that are long
	// enough width is 0.
	skip  []uint8
	width int

	depth   []int32 // how much of the text's end the state stands for
	open    []int32 // how much of it more text could make a form of
	hit     []int32 // length of the longest form that ends here; 0: none
	longest int
}

// maxDense bounds the memory for rows: some hundred KiB with usual secrets.
const maxDense = 1024

// NewFinder looks for these forms; see [Forms]. Empty ones are left out.
func NewFinder(forms [][]byte) *Finder {
	f := &Finder{}
	classes := uint16(1)
	var t tree
	t.add(0)
	for _, form := range forms {
		for _, b := range form {
			if f.class[b] == 0 {
				f.class[b] = classes
				classes++
			}
		}
		t.insert(form)
		f.longest = max(f.longest, len(form))
	}
	for 1<<f.shift < classes {
		f.shift++
	}
	f.number(&t)
	f.makeSkip(forms)
	return f
}

const (
	gram     = 3
	skipBits = 15
)

// gramHash is the hash of the three bytes at the beginning of p.
func gramHash(p []byte) uint32 {
	_ = p[2]
	return (uint32(p[0]) | uint32(p[1])<<8 | uint32(p[2])<<16) * 0x9e3779b1 >> (32 - skipBits)
}

// makeSkip makes the table of Wu and Manber.
func (f *Finder) makeSkip(forms [][]byte) {
	width := MinBytes
	for _, form := range forms {
		if len(form) > 0 {
			width = min(width, len(form))
		}
	}
	if f.longest == 0 || width < 2*gram {
		return
	}
	f.width = width
	f.skip = make([]uint8, 1<<skipBits)
	for i := range f.skip {
		f.skip[i] = uint8(width - gram + 1)
	}
	for _, form := range forms {
		for k := 0; k+gram <= width && k < len(form); k++ {
			h := gramHash(form[k:])
			f.skip[h] = min(f.skip[h], uint8(width-gram-k))
		}
	}
}

// Empty says that there is nothing to look for.
func (f *Finder) Empty() bool { return f.longest == 0 }

// tree is the forms by their beginnings, in the order in which they were put in.
type tree struct {
	label       []byte
	child, next []int32 // 0: none
	endsForm    []bool
}

func (t *tree) add(b byte) int32 {
	t.label = append(t.label, b)
	t.child, t.next = append(t.child, 0), append(t.next, 0)
	t.endsForm = append(t.endsForm, false)
	return int32(len(t.label) - 1)
}

func (t *tree) insert(form []byte) {
	if len(form) == 0 {
		return
	}
	at := int32(0)
	for _, b := range form {
		c := t.child[at]
		for c != 0 && t.label[c] != b {
			c = t.next[c]
		}
		if c == 0 {
			c = t.add(b)
			t.next[c], t.child[at] = t.child[at], c
		}
		at = c
	}
	t.endsForm[at] = true
}

// number makes the states of the tree's nodes.
func (f *Finder) number(t *tree) {
	n := len(t.label)
	f.dense = int32(min(n, maxDense))
	f.rows = make([]int32, int(f.dense)<<f.shift)
	f.firstEdge = make([]int32, n+1)
	f.edgeByte, f.edgeTo = make([]byte, 0, n-1), make([]int32, 0, n-1)
	f.fail, f.depth, f.open, f.hit = make([]int32, n), make([]int32, n), make([]int32, n), make([]int32, n)
	nodes := make([]int32, 1, n) // by state
	for s := int32(0); int(s) < len(nodes); s++ {
		node := nodes[s]
		f.firstEdge[s] = int32(len(f.edgeTo))
		// What the state has no edge for goes where its fail state goes, which is
		// shallower and has its row already.
		if s > 0 && s < f.dense {
			copy(f.rows[int(s)<<f.shift:][:1<<f.shift], f.rows[int(f.fail[s])<<f.shift:])
		}
		for c := t.child[node]; c != 0; c = t.next[c] {
			to := int32(len(nodes))
			nodes = append(nodes, c)
			b := t.label[c]
			f.depth[to] = f.depth[s] + 1
			if s > 0 {
				f.fail[to] = f.next(f.fail[s], b)
			}
			if f.hit[to] = f.hit[f.fail[to]]; t.endsForm[c] {
				f.hit[to] = f.depth[to]
			}
			if f.open[to] = f.open[f.fail[to]]; t.child[c] != 0 {
				f.open[to] = f.depth[to]
			}
			f.edgeByte, f.edgeTo = append(f.edgeByte, b), append(f.edgeTo, to)
			if s < f.dense {
				f.rows[int(s)<<f.shift|int(f.class[b])] = to
			}
		}
		f.firstEdge[s+1] = int32(len(f.edgeTo))
	}
}

// next is the state after one more byte. Over a text its cost is constant per byte.
func (f *Finder) next(s int32, b byte) int32 {
	for s >= f.dense {
		for e := f.firstEdge[s]; e < f.firstEdge[s+1]; e++ {
			if f.edgeByte[e] == b {
				return f.edgeTo[e]
			}
		}
		s = f.fail[s]
	}
	return f.rows[int(s)<<f.shift|int(f.class[b])]
}
