package operation_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/operation"
	"github.com/hearthd/hearth/internal/session"
)

func TestReadChat(t *testing.T) {
	t.Parallel()
	user := `{"id":"m1","role":"user","parts":[{"type":"text","text":"do it"}]}`
	agent := `{"id":"trn_1","role":"assistant","parts":[{"type":"dynamic-tool","toolCallId":"c","state":"approval-responded","approval":{"id":"qst_1-1","approved":%s,"reason":"ok"}}]}`
	answers := func(allow bool) operation.Chat {
		return operation.Chat{Turn: "trn_1", Shown: "qst_1-1", Answers: []operation.ChatAnswer{{Question: "qst_1-1", Allow: allow, Message: "ok"}}}
	}
	shown := func(q session.QuestionID) operation.Chat {
		c := answers(true)
		c.Shown = q
		return c
	}
	var many strings.Builder
	for i := range 1001 {
		fmt.Fprintf(&many, `{"approval":{"id":"qst_1-%d","approved":true}},`, i+1)
	}
	tests := map[string]struct {
		body string
		want operation.Chat
		code fault.Code
		says string
	}{
		"as the SDK sends it":    {body: `{"id":"x","messages":[` + user + `],"trigger":"submit-message"}`, want: operation.Chat{Prompt: "do it", Message: "m1"}},
		"only the newest":        {body: `{"message":` + user + `,"id":"ses_1","mode":"interrupt","approvals":"close"}`, want: operation.Chat{Prompt: "do it", Message: "m1", Mode: session.ModeInterrupt, Close: true}},
		"history is not read":    {body: `{"messages":[{"role":"assistant","parts":7},` + user + `]}`, want: operation.Chat{Prompt: "do it", Message: "m1"}},
		"several texts":          {body: `{"messages":[{"role":"user","parts":[{"type":"text","text":"a"},{"type":"data-x","data":1},{"type":"text","text":"b"}]}]}`, want: operation.Chat{Prompt: "a\n\nb"}},
		"allowed":                {body: `{"messages":[` + fmt.Sprintf(agent, "true") + `],"messageId":"trn_1"}`, want: answers(true)},
		"denied":                 {body: `{"messages":[` + user + `,` + fmt.Sprintf(agent, "false") + `]}`, want: answers(false)},
		"answered twice":         {body: `{"messages":[{"id":"trn_1","role":"assistant","parts":[{"approval":{"id":"qst_1-1","approved":true,"reason":"ok"}},{"approval":{"id":"qst_1-1","approved":true}}]}]}`, want: answers(true)},
		"both ways":              {body: `{"messages":[{"id":"trn_1","role":"assistant","parts":[{"approval":{"id":"qst_1-1","approved":true}},{"approval":{"id":"qst_1-1","approved":false}}]}]}`, code: fault.InvalidInput, says: "both allows and denies"},
		"not all answered":       {body: `{"messages":[{"id":"trn_1","role":"assistant","parts":[{"approval":{"id":"qst_1-10"}},{"approval":{"id":"qst_1-1","approved":true,"reason":"ok"}},{"approval":{"id":"qst_2-99"}},{"approval":{"id":"qst_1-011"}}]}]}`, want: shown("qst_1-10")},
		"too many answers":       {body: `{"messages":[{"id":"trn_1","role":"assistant","parts":[` + many.String() + `{}]}]}`, code: fault.InvalidInput, says: "1000"},
		"behind the object":      {body: `{"messages":[` + user + `]} {}`, code: fault.InvalidInput, says: "goes on"},
		"no list":                {body: `{"messages":{}}`, code: fault.InvalidInput, says: "no list"},
		"a wrong type":           {body: `{"messages":[` + user + `],"mode":7}`, code: fault.InvalidInput, says: "field mode must be a text, not a number."},
		"a message that is none": {body: `{"messages":["do it"]}`, code: fault.InvalidInput, says: "newest message is not a JSON object"},
		"parts that are no list": {body: `{"messages":[{"role":"user","parts":"do it"}]}`, code: fault.InvalidInput, says: "field parts must be a list, not a text."},
		"neither yes nor no":     {body: `{"messages":[` + fmt.Sprintf(agent, `"yes"`) + `]}`, code: fault.InvalidInput, says: "field parts.approval.approved must be true or false, not a text."},
		"cut":                    {body: `{"messages":[` + user, code: fault.InvalidInput},
		"answered behind a text": {body: `{"messages":[` + fmt.Sprintf(agent, "true") + `,` + user + `],"messageId":"trn_1"}`, want: answers(true)},
		"edited":                 {body: `{"messages":[` + user + `],"messageId":"m1"}`, code: fault.HistoryImmutable, says: "cannot be changed"},
		"edited elsewhere":       {body: `{"messages":[` + user + `],"messageId":"m0"}`, code: fault.HistoryImmutable},
		"regenerated":            {body: `{"messages":[` + user + `],"trigger":"regenerate-message"}`, code: fault.HistoryImmutable, says: "done anew"},
		"another session":        {body: `{"id":"ses_2","messages":[` + user + `]}`, code: fault.InvalidInput, says: "ses_2"},
		"a field of its own":     {body: `{"model":"gpt","messages":[` + user + `]}`, code: fault.InvalidInput, says: `"model"`},
		"a file":                 {body: `{"messages":[{"role":"user","parts":[{"type":"file","url":"data:,x","mediaType":"text/plain"},{"type":"text","text":"a"}]}]}`, code: fault.Unsupported, says: "Files"},
		"another part":           {body: `{"messages":[{"role":"user","parts":[{"type":"reasoning","text":"a"}]}]}`, code: fault.Unsupported},
		"nothing said":           {body: `{"messages":[{"role":"user","parts":[{"type":"text","text":" \n"}]}]}`, code: fault.InvalidInput, says: "empty"},
		"no question":            {body: `{"messages":[{"role":"assistant","parts":[{"type":"text","text":"a"}]}]}`, code: fault.InvalidInput, says: "answers no question"},
		"undecided":              {body: `{"messages":[` + strings.Replace(agent, `"approved":%s,`, "", 1) + `]}`, code: fault.InvalidInput},
		"a system message":       {body: `{"messages":[{"role":"system","parts":[]}]}`, code: fault.InvalidInput, says: "system"},
		"no message":             {body: `{"messages":[]}`, code: fault.InvalidInput, says: "no message"},
		"half a character":       {body: `{"messages":[{"role":"user","parts":[{"type":"text","text":"\ud83d"}]}]}`, code: fault.InvalidInput, says: "half of a character"},
		"a long id":              {body: `{"messages":[{"id":"` + strings.Repeat("x", 256) + `","role":"user","parts":[{"type":"text","text":"a"}]}]}`, code: fault.InvalidInput},
		"no JSON":                {body: `hello`, code: fault.InvalidInput},
		"another mode":           {body: `{"mode":"steer","messages":[` + user + `]}`, code: fault.InvalidInput, says: "steer"},
		"another trigger":        {body: `{"trigger":"x","messages":[` + user + `]}`, code: fault.InvalidInput},
		"both":                   {body: `{"message":` + user + `,"messages":[` + user + `]}`, code: fault.InvalidInput},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := operation.ReadChat("ses_1", []byte(tc.body))
			if tc.code != "" {
				if fault.CodeOf(err) != tc.code || !strings.Contains(err.Error(), tc.says) {
					t.Fatalf("got %v, want %s with %q", err, tc.code, tc.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func FuzzReadChat(f *testing.F) {
	f.Add([]byte(`{"id":"x","messages":[{"id":"m","role":"user","parts":[{"type":"text","text":"x"}]}],"trigger":"submit-message"}`))
	f.Add([]byte(`{"messages":[{"id":"t","role":"assistant","parts":[{"approval":{"id":"q","approved":true}}]}],"messageId":"t"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := operation.ReadChat("ses_1", raw)
		if err != nil {
			if fault.CodeOf(err) == fault.InternalError {
				t.Fatalf("a refusal without a code: %v", err)
			}
			return
		}
		if (strings.TrimSpace(c.Prompt) == "") == (len(c.Answers) == 0) {
			t.Fatalf("neither a prompt nor answers, or both: %+v", c)
		}
	})
}
