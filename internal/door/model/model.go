// Package model is the door through which the agent of one session reaches its
// model provider. The sandbox speaks Anthropic Messages, OpenAI Responses and
// Chat, or Gemini to a loopback port, with a placeholder for a key; the door
// passes an exact list of calls, puts the key in on this side, streams the
// answer unbuffered and reads the usage from it. It neither routes between
// providers, nor caches, nor prices. Start at [New]; providers from the
// environment are in [FromEnv].
package model

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthd/hearth/internal/door"
	"github.com/hearthd/hearth/internal/secret"
)

// Dialect is a family of calls and, as "/" + Dialect, the path under which the
// door takes them.
type Dialect string

// The dialects. Agents get these base URLs: /anthropic, /openai/v1, /gemini.
const (
	Anthropic Dialect = "anthropic" // Messages: https://docs.anthropic.com/en/api/messages
	OpenAI    Dialect = "openai"    // Responses and Chat: https://platform.openai.com/docs/api-reference
	Gemini    Dialect = "gemini"    // generateContent: https://ai.google.dev/api
)

// Auth is how the key is given to the provider.
type Auth string

// The ways to give a key.
const (
	AuthNone        Auth = "none"
	AuthAPIKey      Auth = "api-key"      // X-Api-Key
	AuthBearer      Auth = "bearer"       // Authorization: Bearer
	AuthOAuthBearer Auth = "oauth-bearer" // as bearer, with Anthropic's beta header for OAuth tokens
	AuthGoogleKey   Auth = "google-key"   // X-Goog-Api-Key
)

// Route leads to a provider.
type Route struct {
	// Name is for log and usage, such as the provider's name.
	Name string
	// BaseURL is what the provider's own SDK takes as its base: without a version
	// for Anthropic and Gemini, with it for OpenAI (https://api.openai.com/v1).
	BaseURL *url.URL
	Auth    Auth
	// Key is asked for each exchange, concurrently. Not needed with AuthNone.
	Key func(ctx context.Context) (secret.Secret, error)
}

// Limits of the door. A zero field gets the default named beside it.
type Limits struct {
	Concurrency   int           // open exchanges: 16
	RequestBytes  int64         // of one request body: 32 MiB
	ResponseBytes int64         // of one answer: 64 MiB
	MemoryBytes   int64         // held of all open exchanges: their requests, and what usage is read from: 64 MiB
	Body          time.Duration // until the request body is there: 1 min
	Idle          time.Duration // without a byte from the provider, or none taken by the agent: 10 min
	Total         time.Duration // of one exchange: 2 h
	Requests      int64         // exchanges in the door's life: no limit
}

func (l *Limits) defaults() {
	door.Default(&l.Concurrency, 16)
	door.Default(&l.RequestBytes, 32<<20)
	door.Default(&l.ResponseBytes, 64<<20)
	door.Default(&l.MemoryBytes, 64<<20)
	door.Default(&l.Body, time.Minute)
	door.Default(&l.Idle, 10*time.Minute)
	door.Default(&l.Total, 2*time.Hour)
}

// Usage is what one answered call used. The four counts do not overlap: Input is
// what was neither read from nor written to the provider's cache, Output
// includes reasoning.
type Usage struct {
	Route   string
	Dialect Dialect
	Model   string // as the provider names it, else as it was asked for

	Input, Output, CacheRead, CacheWrite int64 // tokens
	CacheWriteHour                       int64 // the part of CacheWrite that is kept for an hour

	// Estimated: the answer was cut, or had no usage in it; what is not known was
	// reckoned as a token for every four bytes.
	Estimated bool
	Status    int
	Took      time.Duration
}

// Config of the door of one session. The callbacks run on the exchange's own
// goroutine, concurrently with those of other exchanges; the answer to the agent
// waits for OnKeyRejected and does not end before OnUsage has returned.
type Config struct {
	Routes map[Dialect]Route

	// OnKeyRejected is called once for each call to a model whose key the provider
	// refused (status 401 or 403) or for which there was none (status 0).
	// sentence is for the person and holds no secret.
	OnKeyRejected func(status int, sentence string)
	// OnUsage is called once for each answered call to a model.
	OnUsage func(Usage)
	// OnEnd is told the status of each call to a model that the agent got an answer to,
	// good or not, before the agent has all of it.
	OnEnd func(status int)
	// OnOpen is told the number of open exchanges after each change, in order. It
	// must return soon and not call into the door.
	OnOpen func(open int)

	// Memory is shared by all doors of a server; nil: one of [ServerMemory] bytes of this door's own.
	Memory    *door.Memory
	Limits    Limits
	Transport http.RoundTripper // nil: one shared by all doors of the process
	Log       *slog.Logger      // nil: no log
	Now       func() time.Time  // nil: time.Now
}

// ServerMemory is what the model doors of one server should hold together, in bytes.
const ServerMemory = 256 << 20

// Door is the model door of one session.
type Door struct {
	cfg    Config
	memory *door.Memory // of this session, beside the server's
	slots  chan struct{}
	taken  atomic.Int64

	mu   sync.Mutex
	open int

	mask atomic.Pointer[masker] // of the key that was used last

	// plainChat: the provider refused stream_options, so that it is not sent again.
	plainChat atomic.Bool
}

// New makes a door. It holds no goroutine and need not be closed.
func New(cfg Config) *Door {
	cfg.Limits.defaults()
	if cfg.Transport == nil {
		cfg.Transport = sharedTransport()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Memory == nil {
		cfg.Memory = door.NewMemory(ServerMemory)
	}
	return &Door{cfg: cfg, memory: door.NewMemory(cfg.Limits.MemoryBytes), slots: make(chan struct{}, cfg.Limits.Concurrency)}
}

// Open is the number of exchanges that are not answered to their end.
func (d *Door) Open() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.open
}

func (d *Door) opened(delta int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open += delta
	if d.cfg.OnOpen != nil {
		d.cfg.OnOpen(d.open)
	}
}
