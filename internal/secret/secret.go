// Package secret holds the value that hides itself: a key that may be passed
// around, logged, formatted and marshalled by mistake without being shown. It also
// knows in which forms a value may be written and finds them in texts; what is
// done about it is others' business. It keeps no secrets and knows no place where
// they come from. Start at [New], and at [Forms] and [Finder].
package secret

import (
	"crypto/subtle"
	"fmt"
	"log/slog"
)

// Hidden is what is shown in place of every secret.
const Hidden = "[hidden]"

// Secret is a hidden text. The zero value is the empty secret. Two secrets are
// compared with [Secret.Equal], not with ==.
type Secret struct {
	// A pointer, because fmt prints the fields of an enclosing struct by
	// reflection where it cannot call methods, and then shows an address.
	text *string
}

// New hides text.
func New(text string) Secret { return Secret{text: &text} }

// Reveal returns the text. It is called where the secret is used and nowhere else.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// Empty tells whether there is nothing to reveal.
func (s Secret) Empty() bool { return s.Reveal() == "" }

// Equal compares in constant time.
func (s Secret) Equal(other Secret) bool {
	return subtle.ConstantTimeCompare([]byte(s.Reveal()), []byte(other.Reveal())) == 1
}

// String hides.
func (s Secret) String() string { return Hidden }

// GoString hides.
func (s Secret) GoString() string { return Hidden }

// Format hides for every verb, also for those that do not ask for a string.
func (s Secret) Format(f fmt.State, _ rune) {
	_, _ = f.Write([]byte(Hidden)) // fmt has no use for the error
}

// LogValue hides.
func (s Secret) LogValue() slog.Value { return slog.StringValue(Hidden) }

// MarshalJSON hides.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + Hidden + `"`), nil }

// MarshalText hides, for every encoder that asks for text.
func (s Secret) MarshalText() ([]byte, error) { return []byte(Hidden), nil }
