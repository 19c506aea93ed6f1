package git

import (
	"net/http"
	"net/http/cgi"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/hearthd/hearth/internal/fault"
)

// Local serves fetches from a repository of this machine, read-only: the
// session's own packed work, which the remote may not have. It takes the paths
// that smart HTTP has below the repository (gitprotocol-http(5)); everything else is
// refused. Any commit of the repository may be asked for by its id.
func Local(dir string) (http.Handler, error) {
	git, err := exec.LookPath("git")
	if err != nil {
		return nil, fault.Wrap(err, fault.ConfigInvalid, "Git is not installed on the server.")
	}
	backend := &cgi.Handler{
		Path: git,
		Args: []string{
			"-c", "safe.directory=*", "-c", "uploadpack.allowAnySHA1InWant=true", "-c", "http.receivepack=false", "-c", "core.hooksPath=/dev/null",
			"http-backend",
		},
		Dir: filepath.Dir(dir),
		Env: []string{
			"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "HOME=/nonexistent", "LC_ALL=C",
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fetch := r.Method == http.MethodGet && r.URL.Path == "/info/refs" && r.URL.RawQuery == "service=git-upload-pack" ||
			r.Method == http.MethodPost && r.URL.Path == "/git-upload-pack" && r.URL.RawQuery == ""
		if !fetch || strings.Contains(r.URL.Path, "..") {
			http.Error(w, fault.New(fault.GitRepositoryRefused, "Hearth: packed work can be fetched here and nothing else.").Sentence(), http.StatusForbidden)
			return
		}
		backend.ServeHTTP(w, r)
	}), nil
}
