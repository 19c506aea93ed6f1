package approval

import "strings"

// maxCommands of one line.
const maxCommands = 64

// Split parts a shell line into the words of its simple commands. ok is false when the line has
// anything beyond plain words, quotes and the operators between commands: then nobody can tell
// by its text alone what would run.
func Split(line string) (commands [][]string, ok bool) {
	var words []string
	var word strings.Builder
	inWord := false
	endWord := func() {
		if inWord {
			words = append(words, word.String())
			word.Reset()
			inWord = false
		}
	}
	endCommand := func() {
		endWord()
		if len(words) > 0 {
			commands = append(commands, words)
			words = nil
		}
	}
	rs := []rune(line)
	for i := 0; i < len(rs); i++ {
		r := rs[i]
		switch {
		case r == ' ' || r == '\t':
			endWord()
		case r == '\n' || r == ';':
			endCommand()
		case r == '&' || r == '|':
			if i+1 < len(rs) && rs[i+1] == r {
				i++
			}
			endCommand()
		case r == '\'':
			end := i + 1
			for end < len(rs) && rs[end] != '\'' {
				end++
			}
			if end == len(rs) {
				return nil, false
			}
			word.WriteString(string(rs[i+1 : end]))
			inWord, i = true, end
		case r == '"':
			end := i + 1
			for end < len(rs) && rs[end] != '"' {
				if strings.ContainsRune("$`\\", rs[end]) {
					return nil, false
				}
				end++
			}
			if end == len(rs) {
				return nil, false
			}
			word.WriteString(string(rs[i+1 : end]))
			inWord, i = true, end
		// Expansions, redirections, groups, escapes, comments, patterns.
		case strings.ContainsRune("$`\\<>(){}#*?[]~!", r):
			return nil, false
		case r < ' ':
			return nil, false
		default:
			word.WriteRune(r)
			inWord = true
		}
		if len(commands) > maxCommands {
			return nil, false
		}
	}
	endCommand()
	// An assignment before a command changes what it does.
	for _, c := range commands {
		if strings.Contains(c[0], "=") {
			return nil, false
		}
	}
	return commands, len(commands) > 0
}
