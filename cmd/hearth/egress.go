package main

import (
	"net/url"
	"os"
	"strings"

	"github.com/hearthd/hearth/internal/config"
	"github.com/hearthd/hearth/internal/door/egress"
	"github.com/hearthd/hearth/internal/door/model"
	"github.com/hearthd/hearth/internal/fault"
)

// checkEgress checks the lists of hosts that sandboxes may reach, and reports all
// mistakes at once, by flag. Code: CONFIG_INVALID.
func checkEgress(c config.Config, lookup func(string) (string, bool)) error {
	providers, err := model.FromEnv(lookup)
	if err != nil {
		return err
	}
	_, allow := egress.CheckAllow(c.AllowHosts, append(providers.Hosts(), gitHosts(c.GitCredentials)...))
	_, registries := egress.CheckAllow(c.Registries, nil)
	var wrong []string
	for _, list := range []struct {
		flag string
		err  error
	}{{"--egress-allow", allow}, {"--registries", registries}, {"--egress-allow-private", egress.CheckPrivate(c.AllowPrivate)}} {
		if list.err != nil {
			wrong = append(wrong, list.flag+": "+fault.From(list.err).Sentence())
		}
	}
	if len(wrong) > 0 {
		return fault.New(fault.ConfigInvalid, "%s", strings.Join(wrong, " "))
	}
	return nil
}

// gitHosts are the git hosts that are known before there is a session: the usual
// ones and those of the file with logins. A file that cannot be read has none
// here; its first use tells of that.
func gitHosts(file string) []string {
	hosts := []string{"github.com", "api.github.com", "gitlab.com"}
	if file == "" {
		return hosts
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return hosts
	}
	for line := range strings.Lines(string(raw)) {
		if u, err := url.Parse(strings.TrimSpace(line)); err == nil && u.Hostname() != "" {
			hosts = append(hosts, u.Hostname())
		}
	}
	return hosts
}
