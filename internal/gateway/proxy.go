package gateway

import (
	"strings"

	"github.com/hearthd/hearth/internal/uistream"
)

// maxPadding is the largest comment that a viewer can have behind every write.
const maxPadding = 64 << 10

var padding = strings.Repeat("-", maxPadding)

// appendPadding appends a comment of n bytes. It comes last, so that a proxy which
// passes on whole blocks keeps some of the comment back and nothing of the events.
func appendPadding(buf []byte, n int) []byte {
	if n == 0 {
		return buf
	}
	return uistream.AppendComment(buf, padding[:n])
}
