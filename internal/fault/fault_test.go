package fault_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/hearthd/hearth/internal/fault"
)

func TestFromKeepsTheCode(t *testing.T) {
	cause := errors.New("connection refused")
	err := fmt.Errorf("deliver: %w", fault.Wrap(cause, fault.ForgeUnavailable, "The host said nothing."))
	got := fault.From(err)
	if got.Code != fault.ForgeUnavailable || got.Kind() != fault.KindUnavailable {
		t.Fatalf("got %v of kind %v", got.Code, got.Kind())
	}
	if got.Sentence() != "The host said nothing." {
		t.Fatalf("sentence %q shows more than the message", got.Sentence())
	}
	if !errors.Is(err, cause) {
		t.Fatal("the cause is lost")
	}
	if !errors.Is(err, &fault.Error{Code: fault.ForgeUnavailable}) {
		t.Fatal("errors of one code do not match")
	}
	if fault.CodeOf(errors.New("x")) != fault.InternalError || fault.CodeOf(nil) != "" {
		t.Fatal("uncoded errors must be internal, nil must have none")
	}
}

func TestEveryKindIsMapped(t *testing.T) {
	for _, i := range fault.All() {
		if i.Kind.HTTPStatus() == 0 || i.Kind.ExitStatus() == 0 {
			t.Errorf("%s: kind %q is not mapped", i.Code, i.Kind)
		}
	}
}

func TestGeneratedFilesAreCurrent(t *testing.T) {
	paths := []string{"codes_gen.go", "../../docs/errors.md"}
	before := map[string]string{}
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		before[p] = string(b)
	}
	if out, err := exec.Command("go", "run", "./gen").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		if string(b) != before[p] {
			t.Errorf("%s was not current; it has been written anew", p)
		}
	}
}
