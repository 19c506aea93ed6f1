package forge

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hearthd/hearth/internal/fault"
)

// MaxBranch bounds a branch's name in bytes.
const MaxBranch = 200

// CheckBranch says in words (BRANCH_INVALID) why a name may not be a branch.
func CheckBranch(name string) error {
	why := ""
	switch {
	case name == "":
		why = "A branch must have a name."
	case len(name) > MaxBranch:
		why = "A branch's name may have " + strconv.Itoa(MaxBranch) + " bytes at most."
	case !utf8.ValidString(name):
		why = "The branch's name is not valid UTF-8."
	case strings.HasPrefix(name, "-"):
		why = "A branch's name may not begin with a dash."
	case name == "HEAD" || name == "@":
		why = name + " is not the name of a branch."
	case strings.HasPrefix(name, "refs/"):
		why = "Give the branch's short name, without refs/heads/."
	default:
		why = refProblem(name)
	}
	if why == "" {
		return nil
	}
	return fault.New(fault.BranchInvalid, "%s", why)
}

// ValidRef says whether refs/heads/name is a ref that git takes, by the rules of git-check-ref-format(1).
func ValidRef(name string) bool { return refProblem(name) == "" }

func refProblem(name string) string {
	for _, part := range strings.Split(name, "/") {
		switch {
		case part == "":
			return "A branch's name may not have an empty part between slashes."
		case strings.HasPrefix(part, "."):
			return "No part of a branch's name may begin with a dot."
		case strings.HasSuffix(part, ".lock"):
			return "No part of a branch's name may end with .lock."
		}
	}
	switch {
	case strings.HasSuffix(name, "."):
		return "A branch's name may not end with a dot."
	case strings.Contains(name, ".."):
		return "A branch's name may not have two dots in a row."
	case strings.Contains(name, "@{"):
		return "A branch's name may not contain @{."
	}
	for _, c := range []byte(name) {
		if c < 0x20 || c == 0x7f || strings.IndexByte(" ~^:?*[\\", c) >= 0 {
			return "A branch's name may not contain spaces, control characters or any of ~^:?*[\\."
		}
	}
	return ""
}

// FreshBranch makes a name for a session's branch, hearth/<slug>-<id>, that is not
// among heads (branch → commit) and can stand beside them: a branch named hearth
// leaves no room for hearth/x. id is short, of letters and digits.
func FreshBranch(task, id string, heads map[string]string) string {
	base := "hearth/"
	if _, ok := heads["hearth"]; ok {
		base = "hearth-"
	}
	if s := slug(task); s != "" {
		base += s + "-"
	}
	base += id
	name := base
	for n := 2; taken(name, heads); n++ {
		name = base + "-" + strconv.Itoa(n)
	}
	return name
}

func taken(name string, heads map[string]string) bool {
	if _, ok := heads[name]; ok {
		return true
	}
	for h := range heads {
		if strings.HasPrefix(h, name+"/") || strings.EqualFold(h, name) {
			return true
		}
	}
	return false
}

// slug keeps the first words of the task's first line: letters and digits in lower case, at most 40 bytes.
func slug(task string) string {
	task = strings.TrimSpace(task)
	task, _, _ = strings.Cut(task, "\n")
	var b strings.Builder
	dash := false
	for _, r := range task {
		if r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			dash = b.Len() > 0
			continue
		}
		if b.Len() >= 40 || dash && b.Len() >= 32 {
			break
		}
		if dash {
			b.WriteByte('-')
			dash = false
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return strings.TrimSuffix(b.String(), ".lock")
}
