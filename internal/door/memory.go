package door

import "sync/atomic"

// Memory is a number of bytes that many may hold together. It is for concurrent use.
type Memory struct {
	most int64
	used atomic.Int64
}

// NewMemory makes one of so many bytes.
func NewMemory(bytes int64) *Memory { return &Memory{most: bytes} }

// Take takes n bytes, all or none.
func (m *Memory) Take(n int64) bool {
	for {
		used := m.used.Load()
		if n > m.most-used {
			return false
		}
		if m.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// Give brings back n bytes that were taken.
func (m *Memory) Give(n int64) { m.used.Add(-n) }

// Used is how many bytes are held.
func (m *Memory) Used() int64 { return m.used.Load() }
