package ticket

import (
	"bytes"
	"testing"
	"time"
)

// There is one form only of what a ticket says.
func FuzzClaims(f *testing.F) {
	c := claims{action: Prompt, expires: time.Unix(1<<33, 0), subject: "ada", workspace: "default", session: "ses_1", credential: "abc"}
	b, err := c.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:headBytes])
	f.Add(append(bytes.Clone(b), 0))
	f.Add(bytes.Repeat([]byte{0xff}, 64))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decode(b)
		if err != nil {
			return
		}
		again, err := c.encode()
		if err != nil || !bytes.Equal(again, b) {
			t.Errorf("%x became %x, %v", b, again, err)
		}
	})
}
