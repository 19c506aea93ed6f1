// Package ticket makes and checks attach tickets: a browser, which must not hold an API
// token, opens one stream of one session with each. A ticket is a MAC over what it is good
// for, expires after [Lifetime] and is used once, whichever server on the store it is shown
// to. The package decides no rights: a ticket says who asked for it, and what they may do is
// asked anew by whoever lets it in. Start at [Desk].
package ticket

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/session"
)

// Header carries a ticket. It is never part of an address.
const Header = "Hearth-Attach-Ticket"

// Lifetime is how long a ticket can be used.
const Lifetime = 90 * time.Second

// Action is what a ticket opens.
type Action string

// The actions. Prompt opens what watch opens, too.
const (
	Watch  Action = "watch"  // GET …/stream
	Prompt Action = "prompt" // POST …/stream
)

// KeyName names the key in the store, KeyBytes is its size.
const (
	KeyName  = "attach-ticket"
	KeyBytes = 32
)

// NewKey makes a key, for a store that has none yet.
func NewKey() []byte {
	k := make([]byte, KeyBytes)
	rand.Read(k)
	return k
}

// Nonces remembers the tickets that were used.
type Nonces interface {
	// Spend is true for exactly one of all callers with the same nonce, on whatever server.
	// What expired long before now may be forgotten.
	Spend(ctx context.Context, nonce []byte, expires, now time.Time) (bool, error)
}

// Desk issues and redeems tickets. It is safe for concurrent use.
type Desk struct {
	Key    []byte // KeyBytes, the same for all servers on a store
	Nonces Nonces
	Now    func() time.Time
	// Resolve returns who a credential stands for now. Code: UNAUTHENTICATED.
	Resolve func(ctx context.Context, credential string) (session.Caller, error)
}

// A ticket is base64url of: version, action, nonce, expiry in microseconds since 1970,
// then subject, workspace, session and credential with two bytes of length before each;
// then the HMAC-SHA256 of all that.
const (
	version    = 1
	nonceBytes = 16
	headBytes  = 1 + 1 + nonceBytes + 8
	maxText    = 4096 // of a ticket as text
)

var code = base64.RawURLEncoding.Strict()

// claims is what a ticket says.
type claims struct {
	action                                  Action
	nonce                                   [nonceBytes]byte
	expires                                 time.Time
	subject, workspace, session, credential string
}

var actions = []Action{1: Watch, 2: Prompt}

func (c *claims) encode() ([]byte, error) {
	b := make([]byte, 0, 256)
	b = append(b, version)
	for i, a := range actions {
		if a == c.action && a != "" {
			b = append(b, byte(i))
		}
	}
	if len(b) != 2 {
		return nil, fault.New(fault.InvalidInput, "action is %.40q; it can be %s or %s.", string(c.action), Watch, Prompt)
	}
	b = append(b, c.nonce[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(c.expires.UnixMicro()))
	for _, s := range []string{c.subject, c.workspace, c.session, c.credential} {
		if len(s) > 1<<16-1 {
			return nil, errors.New("ticket: a name is too long")
		}
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
	}
	return b, nil
}

var errMalformed = errors.New("the ticket is malformed")

func decode(b []byte) (claims, error) {
	var c claims
	if len(b) < headBytes || b[0] != version || int(b[1]) >= len(actions) || actions[b[1]] == "" {
		return c, errMalformed
	}
	c.action = actions[b[1]]
	copy(c.nonce[:], b[2:])
	c.expires = time.UnixMicro(int64(binary.BigEndian.Uint64(b[2+nonceBytes:]))).UTC()
	b = b[headBytes:]
	for _, s := range []*string{&c.subject, &c.workspace, &c.session, &c.credential} {
		if len(b) < 2 || len(b)-2 < int(binary.BigEndian.Uint16(b)) {
			return c, errMalformed
		}
		n := int(binary.BigEndian.Uint16(b))
		*s, b = string(b[2:2+n]), b[2+n:]
	}
	if len(b) != 0 {
		return c, errMalformed
	}
	return c, nil
}

func (d *Desk) mac(payload []byte) []byte {
	m := hmac.New(sha256.New, d.Key)
	m.Write(payload)
	return m.Sum(nil)
}

// Issue makes a ticket for a session, which the caller has found to be there and to be
// theirs to attach to. Code: INVALID_INPUT for an action that is none.
func (d *Desk) Issue(who session.Caller, id session.ID, action Action) (string, time.Time, error) {
	if len(d.Key) != KeyBytes {
		return "", time.Time{}, errors.New("ticket: no key is set")
	}
	c := claims{
		action: action, expires: d.Now().UTC().Truncate(time.Microsecond).Add(Lifetime),
		subject: who.Subject, workspace: who.Workspace, session: string(id), credential: who.Credential,
	}
	rand.Read(c.nonce[:])
	payload, err := c.encode()
	if err != nil {
		return "", time.Time{}, err
	}
	t := code.EncodeToString(append(payload, d.mac(payload)...))
	if len(t) > maxText {
		return "", time.Time{}, errors.New("ticket: the names of subject, workspace and session are too long together")
	}
	return t, c.expires, nil
}

// read checks form and MAC.
func (d *Desk) read(t string) (claims, error) {
	if len(d.Key) != KeyBytes {
		return claims{}, errors.New("ticket: no key is set")
	}
	if len(t) > maxText || strings.ContainsAny(t, "\r\n") { // which base64 passes over
		return claims{}, errMalformed
	}
	raw, err := code.DecodeString(t)
	if err != nil || len(raw) < headBytes+sha256.Size {
		return claims{}, errMalformed
	}
	payload, mac := raw[:len(raw)-sha256.Size], raw[len(raw)-sha256.Size:]
	if !hmac.Equal(mac, d.mac(payload)) {
		return claims{}, errMalformed
	}
	return decode(payload)
}

// verify checks everything about a ticket but whether it was used.
func (d *Desk) verify(t string, id session.ID, action Action, now time.Time) (claims, error) {
	c, err := d.read(t)
	switch {
	case errors.Is(err, errMalformed):
		return c, fault.New(fault.TicketInvalid, "")
	case err != nil:
		return c, err
	case !now.Before(c.expires), c.session != string(id):
		return c, fault.New(fault.TicketInvalid, "")
	case c.action != action && c.action != Prompt:
		return c, fault.New(fault.TicketInvalid, "The attach ticket is for watching only; ask for one with the action %q.", Prompt)
	}
	return c, nil
}

// Verify says whether a ticket is ours, for an action on a session, and not expired. It
// does not use it up, and does not know whether it was used: only [Desk.Redeem] lets
// anybody in. Code: TICKET_INVALID.
func (d *Desk) Verify(t string, id session.ID, action Action) error {
	_, err := d.verify(t, id, action, d.Now())
	return err
}

// Redeem uses a ticket up for an action on a session and returns who asked for it, as they
// are now. What is not right about a ticket of ours is told where that does not help anybody
// who guesses. Codes: TICKET_INVALID; UNAUTHENTICATED when what it was asked for with is
// not valid any more.
func (d *Desk) Redeem(ctx context.Context, t string, id session.ID, action Action) (session.Caller, error) {
	now := d.Now()
	c, err := d.verify(t, id, action, now)
	if err != nil {
		return session.Caller{}, err
	}
	first, err := d.Nonces.Spend(ctx, c.nonce[:], c.expires, now)
	if err != nil {
		return session.Caller{}, err
	}
	if !first {
		return session.Caller{}, fault.New(fault.TicketInvalid, "")
	}
	return Recheck(ctx, d.Resolve, session.Caller{Subject: c.subject, Workspace: c.workspace, Credential: c.credential})
}

// Recheck resolves a caller's credential anew. It must still stand for the same subject in
// the same workspace. Code: UNAUTHENTICATED.
func Recheck(ctx context.Context, resolve func(context.Context, string) (session.Caller, error), was session.Caller) (session.Caller, error) {
	who, err := resolve(ctx, was.Credential)
	switch {
	case fault.CodeOf(err) == fault.Unauthenticated:
		return session.Caller{}, fault.New(fault.Unauthenticated, "What this was asked for with is not valid any more.")
	case err != nil:
		return session.Caller{}, fmt.Errorf("look up who this is for: %w", err)
	case who.Subject != was.Subject || who.Workspace != was.Workspace:
		return session.Caller{}, fault.New(fault.Unauthenticated, "What this was asked for with is not valid any more.")
	}
	return who, nil
}
