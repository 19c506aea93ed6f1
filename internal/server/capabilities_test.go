package server

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/agent"
	"github.com/hearthd/hearth/internal/door/model"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
)

type noSandbox struct{ sandbox.Provider }

func (noSandbox) Capabilities() sandbox.Capabilities { return sandbox.Capabilities{} }

func (noSandbox) List(context.Context, map[string]string) ([]sandbox.Info, error) { return nil, nil }

func TestWhatIsMissing(t *testing.T) {
	t.Parallel()
	providers, err := model.FromEnv(func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	test := &selfTest{done: make(chan struct{})}
	c := &capabilities{
		boxes: noSandbox{}, agents: &agent.Installer{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), Now: time.Now},
		providers: providers, live: func() int { return 0 }, test: test,
	}
	codes := func() []string {
		out, err := c.read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var list []string
		for _, m := range out.Missing {
			if m.Message == "" || m.Remedy == "" {
				t.Errorf("a person is told too little: %+v", m)
			}
			list = append(list, m.Code)
		}
		return list
	}
	if d := cmp.Diff([]string{"AGENT_NOT_INSTALLED"}, codes()); d != "" {
		t.Errorf("while the self-test runs: %s", d)
	}
	test.err = fault.New(fault.SandboxUnsupported, "boot: no")
	close(test.done)
	if d := cmp.Diff([]string{"AGENT_NOT_INSTALLED", "SANDBOX_UNSUPPORTED"}, codes()); d != "" {
		t.Errorf("after it failed: %s", d)
	}
}
