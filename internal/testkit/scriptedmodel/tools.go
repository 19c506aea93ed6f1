package scriptedmodel

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/hearthd/hearth/internal/testkit/script"
)

// tool is one of the request's tools.
type tool struct {
	name   string
	schema map[string]any // JSON schema of its arguments
	free   bool           // takes one free-form text instead (Responses: type custom)
}

// Names under which agents offer the two tools a script needs, best first;
// compared without case, "_" and "-".
var (
	writeNames = []string{"write", "writefile", "createfile", "create", "writetofile", "editor", "strreplacebasededittool", "strreplaceeditor"}
	shellNames = []string{
		"bash", "execcommand", "shell", "shellcommand", "runshellcommand", "localshell", "terminal",
		"executecommand", "runcommands", "runcommand", "runterminalcommand", "runinterminal",
	}
)

var plainName = strings.NewReplacer("_", "", "-", "")

func (c *conversation) find(names []string) (tool, bool) {
	for _, n := range names {
		i := slices.IndexFunc(c.tools, func(t tool) bool { return plainName.Replace(strings.ToLower(t.name)) == n })
		if i >= 0 {
			return c.tools[i], true
		}
	}
	return tool{}, false
}

// named finds a tool by its name, or as agents call the tool of an MCP server.
func (c *conversation) named(name string) (tool, bool) {
	if name == "" {
		return tool{}, false
	}
	for _, t := range c.tools {
		if t.name == name || strings.HasSuffix(t.name, "__"+name) || strings.HasSuffix(t.name, "_"+name) {
			return t, true
		}
	}
	return tool{}, false
}

// toolFor makes the call for a write, run or tool directive, or tells the problem.
func (c *conversation) toolFor(d script.Directive, byShell bool) (*call, string) {
	switch d.Name {
	case "run":
		return c.shell(d.Args)
	case "tool":
		name, rest := d.Split()
		t, ok := c.named(name)
		if !ok {
			return nil, fmt.Sprintf("I have no tool %s; there are %s.", name, c.toolNames())
		}
		args := map[string]any{}
		if rest != "" {
			if err := json.Unmarshal([]byte(rest), &args); err != nil {
				return nil, fmt.Sprintf("The arguments for %s are no JSON object: %v.", name, err)
			}
		}
		return &call{name: t.name, args: args, tool: t}, ""
	}
	file, text := d.Split()
	if file == "" {
		return nil, "A write directive needs a path and a text."
	}
	t, ok := c.find(writeNames)
	if !ok || byShell || t.free {
		cmd := fmt.Sprintf("printf '%%s\\n' %s > %s", shellQuote(text), shellQuote(file))
		if dir := path.Dir(file); dir != "." && dir != "/" {
			cmd = "mkdir -p " + shellQuote(dir) + " && " + cmd
		}
		return c.shell(cmd)
	}
	if dir := c.workDir(); dir != "" && !path.IsAbs(file) {
		file = path.Join(dir, file)
	}
	return &call{name: t.name, tool: t, args: t.fill(func(name string, prop map[string]any) (any, bool) {
		switch plainName.Replace(strings.ToLower(name)) {
		case "filepath", "path", "absolutepath", "file", "filename", "targetfile":
			return file, true
		case "content", "contents", "filetext", "text":
			return text + "\n", true
		case "command":
			return "create", slices.Contains(enum(prop), any("create"))
		}
		return nil, false
	})}, ""
}

func (c *conversation) shell(cmd string) (*call, string) {
	t, ok := c.find(shellNames)
	if !ok {
		return nil, fmt.Sprintf("I have no tool that runs commands; there are %s.", c.toolNames())
	}
	if t.free {
		return &call{name: t.name, free: cmd, tool: t}, ""
	}
	return &call{name: t.name, tool: t, args: t.fill(func(name string, prop map[string]any) (any, bool) {
		switch plainName.Replace(strings.ToLower(name)) {
		case "cmd", "command", "script":
			if prop["type"] == "array" {
				return []string{"sh", "-c", cmd}, true
			}
			return cmd, true
		case "commands":
			return []string{cmd}, true
		case "description":
			return describe(cmd), true
		case "workdir", "cwd", "workingdirectory", "directory", "dirpath":
			dir := c.workDir()
			return dir, dir != "" && slices.Contains(t.required(), name)
		}
		return nil, false
	})}, ""
}

func (c *conversation) toolNames() string {
	var names []string
	for _, t := range c.tools {
		names = append(names, t.name)
	}
	return strings.Join(names, ", ")
}

// How agents tell the model where it works.
var workDirREs = []*regexp.Regexp{
	regexp.MustCompile(`<cwd>\s*(/[^<\n]*?)\s*</cwd>`),
	regexp.MustCompile(`(?i)working directory(?: is)?: *` + "`?" + `(/[^\s` + "`" + `]+)`),
	regexp.MustCompile(`(?i)working in the directory: *(/\S+)`),
}

// workDir is the agent's working directory, empty when the request does not tell.
func (c *conversation) workDir() string {
	for _, re := range workDirREs {
		if m := re.FindStringSubmatch(c.system); m != nil {
			return m[1]
		}
		for _, t := range c.turns {
			if t.role != roleUser {
				continue
			}
			if m := re.FindStringSubmatch(t.text); m != nil {
				return m[1]
			}
		}
	}
	return ""
}

func (t tool) required() []string {
	list, _ := t.schema["required"].([]any)
	var out []string
	for _, v := range list {
		if s, ok := v.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// fill makes arguments: what known gives, and something valid for all else that
// the schema requires.
func (t tool) fill(known func(name string, prop map[string]any) (any, bool)) map[string]any {
	args := map[string]any{}
	props, _ := t.schema["properties"].(map[string]any)
	for name, p := range props {
		prop, _ := p.(map[string]any)
		if known != nil {
			if v, ok := known(name, prop); ok {
				args[name] = v
				continue
			}
		}
		if slices.Contains(t.required(), name) {
			args[name] = instance(prop, 0)
		}
	}
	return args
}

func enum(schema map[string]any) []any {
	list, _ := schema["enum"].([]any)
	return list
}

// instance makes a value that fits a schema. Of several choices it takes the
// last; a next_speaker is the user, so that an agent that asks stops.
func instance(schema map[string]any, depth int) any {
	if depth > 16 { // schemas come from requests and may nest without end
		return nil
	}
	if v, ok := schema["const"]; ok {
		return v
	}
	if list := enum(schema); len(list) > 0 {
		return list[len(list)-1]
	}
	for _, k := range []string{"anyOf", "oneOf", "allOf"} {
		if list, _ := schema[k].([]any); len(list) > 0 {
			s, _ := list[0].(map[string]any)
			return instance(s, depth+1)
		}
	}
	typ, _ := schema["type"].(string)
	if list, _ := schema["type"].([]any); len(list) > 0 {
		typ, _ = list[0].(string)
	}
	props, _ := schema["properties"].(map[string]any)
	if typ == "" && props != nil {
		typ = "object"
	}
	switch strings.ToLower(typ) {
	case "object":
		out := map[string]any{}
		for name, p := range props {
			s, _ := p.(map[string]any)
			v := instance(s, depth+1)
			if name == "next_speaker" && slices.Contains(enum(s), any("user")) {
				v = "user"
			}
			out[name] = v
		}
		return out
	case "array":
		n, _ := schema["minItems"].(float64)
		items, _ := schema["items"].(map[string]any)
		out := []any{}
		for range min(int(n), 16) {
			out = append(out, instance(items, depth+1))
		}
		return out
	case "boolean":
		return false
	case "integer", "number":
		if n, ok := schema["minimum"].(float64); ok {
			return n
		}
		return 1
	case "null":
		return nil
	default:
		return "scripted"
	}
}

func shellQuote(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=+,@%", r)
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
