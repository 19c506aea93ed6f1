package model_test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/hearthd/hearth/internal/door/model"
)

// TestProviderRepeatsKey: however a provider writes the key, or most of it, in its error, nobody is told.
func TestProviderRepeatsKey(t *testing.T) {
	t.Parallel()
	const secretKey = `sk-proj-Ab+Cd/Ef0123456789"QrStUvWx<Yz>&~tail=`
	quoted := func(s string) string { b, _ := json.Marshal(s); return string(b[1 : len(b)-1]) }
	each := func(s, form string) string { // every byte
		var b strings.Builder
		for _, c := range []byte(s) {
			fmt.Fprintf(&b, form, c)
		}
		return b.String()
	}
	b64 := func(enc *base64.Encoding, before string) string {
		return enc.EncodeToString([]byte(before + secretKey + "behind"))
	}
	for name, said := range map[string]string{ // as it stands in the JSON of the body
		"as it is":                quoted(secretKey),
		"in a sentence":           quoted("The key " + secretKey + " is wrong."),
		"escaped for HTML":        strings.NewReplacer(`"`, `\"`).Replace(secretKey),
		"slashes escaped":         strings.NewReplacer(`"`, `\"`, "/", `\/`).Replace(secretKey),
		"hex":                     hex.EncodeToString([]byte(secretKey)),
		"HEX":                     strings.ToUpper(hex.EncodeToString([]byte(secretKey))),
		"base64":                  b64(base64.StdEncoding, ""),
		"base64 after one":        b64(base64.StdEncoding, "a"),
		"base64 after two":        b64(base64.RawStdEncoding, "ab"),
		"base64url after user":    b64(base64.URLEncoding, "user:"),
		"in a query":              url.QueryEscape(secretKey),
		"in a path":               url.PathEscape(secretKey),
		"without its prefix":      quoted(strings.TrimPrefix(secretKey, "sk-proj-")),
		"its beginning":           quoted(secretKey[:25] + "..."),
		"its end":                 quoted("..." + secretKey[20:]),
		"a part between marks":    quoted(secretKey[8:26]),
		"beginning and end":       quoted(secretKey[:16] + "****" + secretKey[len(secretKey)-14:]),
		"as a bearer, long ahead": quoted(strings.Repeat("x", 280) + "Bearer " + secretKey),
		"escaped without need":    each(secretKey, `\u%04x`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Request-Id", secretKey[:25])
				w.WriteHeader(http.StatusUnauthorized)
				io.WriteString(w, `{"error":{"message":"`+said+`"}}`)
			}), func(c *model.Config) {
				rt := c.Routes[model.OpenAI]
				rt.Key = key(secretKey)
				c.Routes[model.OpenAI] = rt
			})
			resp, body := do(t, request(t, http.MethodPost, r.url+"/openai/v1/responses", "{}"))
			_, rejected := r.told()
			if len(rejected) != 1 {
				t.Fatalf("told %q", rejected)
			}
			var v struct{ Error struct{ Message string } }
			if err := json.Unmarshal([]byte(body), &v); err != nil {
				t.Fatalf("%v: %s", err, body)
			}
			for place, text := range map[string]string{"sentence": rejected[0], "body": v.Error.Message, "headers": fmt.Sprint(resp.Header), "log": r.log.String()} {
				for form, whole := range map[string]string{
					"raw": secretKey, "hex": hex.EncodeToString([]byte(secretKey)),
					"base64": base64.StdEncoding.EncodeToString([]byte(secretKey)), "after one": b64(base64.StdEncoding, "a")[2:60], "after two": b64(base64.StdEncoding, "ab")[4:60],
					"after five": b64(base64.StdEncoding, "user:")[7:60], "percent": url.QueryEscape(secretKey),
				} {
					for i := 0; i+13 <= len(whole); i++ {
						if strings.Contains(strings.ToLower(text), strings.ToLower(whole[i:i+13])) {
							t.Fatalf("the %s has %q of the %s key: %s", place, whole[i:i+13], form, text)
						}
					}
				}
			}
			if !strings.Contains(rejected[0], "[hidden]") && !strings.Contains(rejected[0], "xxx") {
				t.Errorf("told %q", rejected)
			}
		})
	}
}
