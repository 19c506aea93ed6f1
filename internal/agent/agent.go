// Package agent describes the coding agents that Hearth can run and puts them
// onto this machine. A [Profile] is reviewed data (profiles/*.yaml): packages
// pinned exactly, command, environment, modes, state folders and every oddity of
// one agent; [Profile.Render] turns it into what the driver has to start. An
// [Installer] fetches the pinned packages into read-only trees that sandboxes
// see below /opt/hearth/agents.
//
// The package starts no agent, speaks no ACP and knows no keys: an agent gets a
// placeholder and loopback addresses, the model door puts in the real ones.
// Start with the yaml of pi, then read Profile and Render.
package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/approval"
	"github.com/hearthd/hearth/internal/fault"
)

// Model providers: whose key and endpoint a session uses.
const (
	ProviderAnthropic        = "anthropic"
	ProviderOpenAI           = "openai"
	ProviderGemini           = "gemini"
	ProviderOpenAICompatible = "openai-compatible"
)

// Dialects: the protocol that an agent speaks to the model door.
const (
	DialectAnthropic       = "anthropic"        // Messages API
	DialectOpenAIResponses = "openai-responses" // Responses API
	DialectOpenAIChat      = "openai-chat"      // Chat Completions API
	DialectGemini          = "gemini"           // generateContent API
)

// Approvals that a session may ask for.
const (
	ApprovalsAuto     = approval.Auto
	ApprovalsAsk      = approval.Asking
	ApprovalsReadOnly = approval.ReadOnly
	ApprovalsRules    = approval.ByRules // by the session's own; needs an agent that asks
)

// Resume says how an agent takes up one of its earlier sessions.
type Resume string

// The styles of resuming, by ACP method.
const (
	ResumeResume         Resume = "resume"           // session/resume, nothing is replayed
	ResumeLoad           Resume = "load"             // session/load, replays before it answers
	ResumeLoadLateReplay Resume = "load-late-replay" // session/load, answers first and replays after
)

// Profile is the reviewed description of one agent. Values are shared: do not
// change what a slice or map in it holds.
type Profile struct {
	Name     string    `yaml:"name"`  // [a-z][a-z0-9-]*, at most 32 bytes
	Title    string    `yaml:"title"` // for people
	Hidden   bool      `yaml:"hidden"`
	Packages []Package `yaml:"packages"` // npm; the first one is the agent itself
	// Copy names the one file of an agent that is not a package: it is copied from InstallOptions.From.
	Copy string `yaml:"copy"`
	Node string `yaml:"node"` // exact version of the agent's own Node; empty: it needs none
	// Tree is the hash of the installed tree; what differs from it is refused.
	Tree      string `yaml:"tree"`
	SizeBytes int64  `yaml:"sizeBytes"` // installed, about
	Layer     Layout `yaml:"layer"`

	Command []string          `yaml:"command"` // templates, see view
	Env     map[string]string `yaml:"env"`     // templates
	Files   []File            `yaml:"files"`   // path below HOME; content is a template
	Routes  []Route           `yaml:"routes"`  // the first one is preferred

	Mode      ModeSetting         `yaml:"mode"`
	Model     ModelSetting        `yaml:"model"`
	Approvals map[string]Approval `yaml:"approvals"` // what the agent can honour, by the session's approvals
	Auth      string              `yaml:"auth"`      // ACP authenticate method, sent when the agent asks for one

	Resume        Resume   `yaml:"resume"`
	MendsAfterCut bool     `yaml:"mendsAfterCut"` // its record is usable after its process was killed in a turn
	State         State    `yaml:"state"`
	Prompt        Prompt   `yaml:"prompt"`
	Noise         []string `yaml:"noise"` // beginnings of agent texts that are not talk
	Limits        Limits   `yaml:"limits"`

	build string
	lock  []byte // package-lock.json
}

// Package is one npm package at one exact version.
type Package struct {
	Name    string `yaml:"name"`
	Version string `yaml:"version"`
}

// Layout is what is done to an installed tree.
type Layout struct {
	Files []File `yaml:"files"` // added; path below the agent's folder
}

// File is put below HOME before the agent starts, or into its layer.
type File struct {
	Path    string `yaml:"path"`
	Content string `yaml:"content"`
	Mode    uint32 `yaml:"mode"` // 0: 0600 in HOME, 0444 in a layer
}

// Route is one way to a model: which provider's key, in which dialect.
type Route struct {
	Provider string `yaml:"provider"`
	Dialect  string `yaml:"dialect"`
	// Model is used when the session names none. Empty: the agent's own choice,
	// or, with NeedsModel, the session must name one.
	Model      string            `yaml:"model"`
	NeedsModel bool              `yaml:"needsModel"`
	Known      []string          `yaml:"known"` // models in the agent's own catalogue, where a file must tell them apart
	Vars       map[string]string `yaml:"vars"`  // for the profile's templates
	Env        map[string]string `yaml:"env"`
	Files      []File            `yaml:"files"`
}

// ModeSetting says how the ACP session's mode is set. It is read back from the
// answer's configOptions with Config, and from current_mode_update or the modes of
// the next new, load or resume otherwise.
type ModeSetting struct {
	Config string `yaml:"config"` // id of the config option; empty: session/set_mode
}

// ModelSetting says how the model is set over ACP; profiles without it render
// the model into environment or files.
type ModelSetting struct {
	Config string `yaml:"config"` // id of the config option
}

// Approval is what to set for one of the session's approvals.
type Approval struct {
	Mode string `yaml:"mode"` // empty: nothing to set
}

// State names what an agent keeps below HOME and needs for resuming.
type State struct {
	Paths      []string `yaml:"paths"`      // files and folders, relative to HOME
	Exclude    []string `yaml:"exclude"`    // credentials: never handed over, even below Paths
	AppendOnly []string `yaml:"appendOnly"` // patterns (path.Match on the base name) of files that only grow
}

// Prompt tells which content an agent takes beside text.
type Prompt struct {
	Image           bool `yaml:"image"`
	Audio           bool `yaml:"audio"`
	EmbeddedContext bool `yaml:"embeddedContext"`
}

// Limits of the agent's own steps.
type Limits struct {
	Start   time.Duration `yaml:"start"`   // until initialize is answered
	Session time.Duration `yaml:"session"` // each of session/new, load, resume
}

// Version is the version of the agent's own package; empty for a copied file.
func (p Profile) Version() string {
	if len(p.Packages) == 0 {
		return ""
	}
	return p.Packages[0].Version
}

// Build names this description and all that it pins: it changes with any byte
// of the profile, its lock file or its Node.
func (p Profile) Build() string { return p.build }

// Providers lists the model providers that the agent can use, preferred first.
func (p Profile) Providers() []string {
	var out []string
	for _, r := range p.Routes {
		out = append(out, r.Provider)
	}
	return out
}

// Route is the way to a provider; the preferred one for "". Code: MODEL_PROVIDER_UNSUPPORTED.
func (p Profile) Route(provider string) (Route, error) {
	if provider == "" && len(p.Routes) > 0 {
		return p.Routes[0], nil
	}
	i := slices.IndexFunc(p.Routes, func(r Route) bool { return r.Provider == provider })
	if i < 0 {
		return Route{}, fault.New(fault.ModelProviderUnsupported, "%s cannot use the model provider %q. It can use: %s.",
			p.Title, provider, strings.Join(p.Providers(), ", "))
	}
	return p.Routes[i], nil
}

// approval is what to set for approvals. An agent that asks can honour rules, and read-only too:
// what it asks is judged for it.
func (p Profile) approval(approvals string) (Approval, bool) {
	if a, ok := p.Approvals[approvals]; ok {
		return a, true
	}
	if approvals == ApprovalsRules || approvals == ApprovalsReadOnly {
		a, ok := p.Approvals[ApprovalsAsk]
		return a, ok
	}
	return Approval{}, false
}

// CheckApprovals refuses approvals that the agent cannot honour. Code: APPROVALS_UNSUPPORTED.
func (p Profile) CheckApprovals(approvals string) error {
	if _, ok := p.approval(approvals); ok {
		return nil
	}
	var can []string
	for _, k := range []string{ApprovalsAuto, ApprovalsAsk, ApprovalsReadOnly, ApprovalsRules} {
		if _, ok := p.approval(k); ok {
			can = append(can, k)
		}
	}
	return fault.New(fault.ApprovalsUnsupported, "%s cannot honour the approvals %q. It can: %s.", p.Title, approvals, strings.Join(can, ", "))
}

func digest(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		var n [8]byte
		for i := range n {
			n[i] = byte(len(p) >> (8 * i))
		}
		h.Write(n[:])
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil))
}
