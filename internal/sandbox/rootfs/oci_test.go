package rootfs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/hearthd/hearth/internal/fault"
)

// item is one entry of a layer: "dir/", "file=content", "link->target",
// "hard=>target", "dev!" for a device; see tarOf.
func tarOf(t testing.TB, items ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, i := range items {
		h := &tar.Header{Mode: 0o644, ModTime: time.Unix(1000, 0), Uid: os.Getuid(), Gid: os.Getgid()}
		var body string
		switch {
		case strings.Contains(i, "=>"):
			h.Name, h.Linkname, _ = strings.Cut(i, "=>")
			h.Typeflag = tar.TypeLink
		case strings.Contains(i, "->"):
			h.Name, h.Linkname, _ = strings.Cut(i, "->")
			h.Typeflag = tar.TypeSymlink
		case strings.Contains(i, "="):
			h.Name, body, _ = strings.Cut(i, "=")
			h.Typeflag, h.Size = tar.TypeReg, int64(len(body))
			if body == "suid" {
				h.Mode = 0o4755
			}
		case strings.HasSuffix(i, "!"):
			h.Name, h.Typeflag, h.Devmajor, h.Devminor = strings.TrimSuffix(i, "!"), tar.TypeBlock, 8, 0
		case strings.HasSuffix(i, "|"):
			h.Name, h.Typeflag = strings.TrimSuffix(i, "|"), tar.TypeFifo
		default:
			h.Name, h.Typeflag, h.Mode = i, tar.TypeDir, 0o755
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// tree lists what is below a folder, without the skeleton's own.
func tree(t testing.TB, dir string) []string {
	t.Helper()
	own := map[string]bool{}
	for _, e := range skeleton {
		own[e.path] = true
	}
	out := []string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		switch {
		case rel == ".":
		case d.Type()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(p)
			out = append(out, rel+"->"+target)
		case d.IsDir():
			if !own[rel] {
				out = append(out, rel+"/")
			}
		default:
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			if !own[rel] || len(data) > 0 {
				out = append(out, rel+"="+string(data))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestUnpack(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		layers [][]string
		want   []string
		fails  string
	}{
		{name: "plain", layers: [][]string{{"a/", "a/f=x", "l->a/f", "h=>a/f", "./dot=1", "/abs=2"}},
			want: []string{"a/", "a/f=x", "abs=2", "dot=1", "h=x", "l->a/f"}},
		{name: "file over folder and back", layers: [][]string{{"a/", "a/f=x", "b=1"}, {"a=file", "b/", "b/g=y"}},
			want: []string{"a=file", "b/", "b/g=y"}},
		{name: "whiteouts", layers: [][]string{{"a/", "a/f=x", "a/g=y", "b/", "b/f=z"}, {"a/.wh.f=", ".wh.b="}},
			want: []string{"a/", "a/g=y"}},
		{name: "a whiteout does not concern its own layer", layers: [][]string{{"a/", "a/f=old"}, {"a/f=new", "a/.wh.f="}},
			want: []string{"a/", "a/f=new"}},
		{name: "opaque", layers: [][]string{{"a/", "a/f=x", "a/sub/", "a/sub/old=1"}, {"a/", "a/sub/", "a/sub/new=2", "a/n=1", "a/.wh..wh..opq="}},
			want: []string{"a/", "a/n=1", "a/sub/", "a/sub/new=2"}},
		{name: "below an earlier link", layers: [][]string{{"usr/", "usr/lib/", "lib->usr/lib"}, {"lib/x=1", "lib/deep/er=2"}},
			want: []string{"lib->usr/lib", "usr/", "usr/lib/", "usr/lib/deep/", "usr/lib/deep/er=2", "usr/lib/x=1"}},
		{name: "below an absolute link", layers: [][]string{{"usr/", "lib->/usr"}, {"lib/x=1"}},
			want: []string{"lib->/usr", "usr/", "usr/x=1"}},
		{name: "dots stay inside", layers: [][]string{{"../../../up=1", "a/", "a/../../b=2"}},
			want: []string{"a/", "b=2", "up=1"}},
		{name: "a link out leads in", layers: [][]string{{"out->../../../../../../esc", "out/x=1"}},
			want: []string{"esc/", "esc/x=1", "out->../../../../../../esc"}},
		{name: "a file over a link replaces it", layers: [][]string{{"p->/etc/passwd2"}, {"p=mine"}},
			want: []string{"p=mine"}},
		{name: "a hard link to a link out", layers: [][]string{{"s->/etc/hostname", "h=>s"}},
			want: []string{"h->/etc/hostname", "s->/etc/hostname"}},
		{name: "devices and FIFOs are left out", layers: [][]string{{"sda!", "pipe|", "f=1"}},
			want: []string{"f=1"}},
		{name: "image's own places", layers: [][]string{{"etc/", "etc/hosts=mine", "var/", "var/run->/run", "home/", "home/agent/", "home/agent/f=1"}},
			want: []string{"etc/hosts=mine", "home/agent/f=1", "var/run->/run"}},
		{name: "a link where a folder must be", layers: [][]string{{"var/", "var/lib->/data"}},
			want: []string{"data/", "data/hearth/", "var/lib->/data"}},
		{name: "links in a circle", layers: [][]string{{"a->b", "b->a", "a/x=1"}}, fails: "too many symbolic links"},
		{name: "hard link out", layers: [][]string{{"h=>../../../../etc/passwd"}}, fails: "no such file"},
		{name: "hard link out through a link", layers: [][]string{{"d->/etc", "h=>d/passwd"}}, fails: "no such file"},
		{name: "below a file", layers: [][]string{{"f=1", "f/g=2"}}, fails: "not a folder"},
		{name: "empty whiteout", layers: [][]string{{".wh.="}}, fails: "names nothing"},
		{name: "whiteout of the parent", layers: [][]string{{"a/", "a/.wh...="}}, fails: "names nothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			outer := t.TempDir()
			dir := filepath.Join(outer, "1", "2", "3")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			u, err := newUnpacker(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer u.close()
			for _, l := range c.layers {
				if err = u.layer(bytes.NewReader(tarOf(t, l...))); err != nil {
					break
				}
			}
			if err == nil {
				err = errors.Join(u.skeleton(), u.finish())
			}
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Fatalf("error %v, want %q", err, c.fails)
				}
			} else {
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(c.want, tree(t, dir)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
			if diff := cmp.Diff([]string{"1/", "1/2/", "1/2/3/"}, tree(t, outer)[:3]); diff != "" {
				t.Errorf("outside (-want +got):\n%s", diff)
			}
			if names, _ := os.ReadDir(outer); len(names) != 1 {
				t.Errorf("outside there is %v", names)
			}
		})
	}
}

func TestUnpackModes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	u, err := newUnpacker(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer u.close()
	if err := errors.Join(u.layer(bytes.NewReader(tarOf(t, "su=suid", "d/", "d/f=1"))), u.skeleton(), u.finish()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{"su": 0o755, "d": fs.ModeDir | 0o755, "d/f": 0o644, "tmp": fs.ModeDir | fs.ModeSticky | 0o777} {
		fi, err := os.Lstat(filepath.Join(dir, name))
		if err != nil || fi.Mode() != want {
			t.Errorf("%s is %v, %v; want %v", name, fi.Mode(), err, want)
		}
	}
	if fi, _ := os.Lstat(filepath.Join(dir, "d")); !fi.ModTime().Equal(time.Unix(1000, 0)) {
		t.Errorf("a folder's time is %v", fi.ModTime())
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(tarOf(f, "a/", "a/f=x", "l->/a", "l/g=1", "h=>a/f", "a/.wh.f=", "../x=1"))
	f.Add(tarOf(f, "a->..", "a/a/a/x=1", ".wh..wh..opq="))
	f.Add([]byte("not a tar"))
	f.Fuzz(func(t *testing.T, data []byte) {
		outer := t.TempDir()
		dir := filepath.Join(outer, "in")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		u, err := newUnpacker(dir)
		if err != nil {
			t.Fatal(err)
		}
		u.owner, u.most = false, 1<<20
		if err := u.layer(bytes.NewReader(data)); err == nil {
			_ = u.skeleton()
			_ = u.finish()
		}
		u.close()
		if names, _ := os.ReadDir(outer); len(names) != 1 {
			t.Errorf("outside there is %v", names)
		}
		_ = os.RemoveAll(dir)
	})
}

func image(t testing.TB, layers ...[]string) v1.Image {
	t.Helper()
	img := empty.Image
	for _, l := range layers {
		data := tarOf(t, l...)
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			t.Fatal(err)
		}
	}
	return img
}

func store(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := New(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestOCISources(t *testing.T) {
	t.Parallel()
	img := image(t, []string{"a/", "a/f=1", "b=2"}, []string{"a/.wh.f=", "c=3"})
	want := []string{"a/", "b=2", "c=3"}
	config, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()

	layoutDir := filepath.Join(dir, "layout")
	p, err := layout.Write(layoutDir, empty.Index)
	if err == nil {
		err = p.AppendImage(img)
	}
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(dir, "image.tar")
	tag, _ := name.NewTag("x.test/y:z")
	if err := tarball.WriteToFile(archive, tag, img); err != nil {
		t.Fatal(err)
	}
	var down atomic.Bool
	reg := registry.New()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if down.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		reg.ServeHTTP(w, r)
	}))
	defer srv.Close()
	host := strings.TrimPrefix(srv.URL, "http://")
	remoteTag, err := name.NewTag(host + "/some/image:latest")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(remoteTag, img); err != nil {
		t.Fatal(err)
	}
	digest, _ := img.Digest()
	byDigest := host + "/some/image@" + digest.String()

	roots := filepath.Join(dir, "roots")
	for _, ref := range []string{"oci-layout:" + layoutDir, "docker-archive:" + archive, remoteTag.String(), byDigest} {
		alone := store(t, filepath.Join(dir, "alone", filepath.Base(ref)))
		root, err := alone.OCI(t.Context(), ref)
		if err != nil {
			t.Errorf("%s: %v", ref, err)
			continue
		}
		if root.Digest != config.String() || root.Kind != "oci" || len(root.Binds) != 0 {
			t.Errorf("%s: %+v, want digest %s", ref, root, config)
		}
		if diff := cmp.Diff(want, tree(t, root.Dir)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", ref, diff)
		}
		shared, err := store(t, roots).OCI(t.Context(), ref)
		if err != nil || filepath.Base(shared.Dir) != filepath.Base(root.Dir) {
			t.Errorf("%s in a shared store: %+v, %v", ref, shared, err)
		}
	}

	down.Store(true)
	if _, err := store(t, roots).OCI(t.Context(), byDigest); err != nil {
		t.Errorf("a known digest without its registry: %v", err)
	}
	if _, err := store(t, roots).OCI(t.Context(), remoteTag.String()); fault.CodeOf(err) != fault.RootInvalid {
		t.Errorf("a tag without its registry = %v", err)
	}
}

func TestOCIRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	damaged := filepath.Join(dir, "damaged")
	p, err := layout.Write(damaged, empty.Index)
	if err == nil {
		err = p.AppendImage(image(t, []string{"a=1"}))
	}
	if err != nil {
		t.Fatal(err)
	}
	// The layer's blob is exchanged for one that is well formed and not the one the configuration names.
	other, err := image(t, []string{"a=2"}).Layers()
	if err != nil {
		t.Fatal(err)
	}
	r, err := other[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	data, _ := io.ReadAll(r)
	img, err := openImage(t.Context(), "oci-layout:"+damaged)
	if err != nil {
		t.Fatal(err)
	}
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(damaged, "blobs", "sha256", m.Layers[0].Digest.Hex), data, 0o644); err != nil {
		t.Fatal(err)
	}
	emptyLayout := filepath.Join(dir, "empty")
	if _, err := layout.Write(emptyLayout, empty.Index); err != nil {
		t.Fatal(err)
	}
	arm := filepath.Join(dir, "arm")
	armImage, err := mutate.ConfigFile(image(t, []string{"a=1"}), &v1.ConfigFile{Architecture: "arm64", OS: "linux"})
	if err != nil {
		t.Fatal(err)
	}
	if p, err = layout.Write(arm, empty.Index); err == nil {
		err = p.AppendImage(armImage)
	}
	if err != nil {
		t.Fatal(err)
	}
	roots := filepath.Join(dir, "roots")
	s := store(t, roots)
	for _, c := range []struct{ ref, words string }{
		{"", "not an image reference"},
		{"a b", "not an image reference"},
		{"oci-layout:/is/not/there", "could not be opened"},
		{"docker-archive:/is/not/there", "could not be opened"},
		{"oci-layout:" + emptyLayout, "0 images"},
		{"oci-layout:" + damaged, "configuration names"},
		{"oci-layout:" + arm, "arm64"},
		{"127.0.0.1:1/none:x", "could not be opened"},
	} {
		_, err := s.OCI(t.Context(), c.ref)
		if fault.CodeOf(err) != fault.RootInvalid || !strings.Contains(fault.From(err).Sentence(), c.words) {
			t.Errorf("%q: %v, want words %q", c.ref, err, c.words)
		}
	}
	if names, _ := os.ReadDir(roots); len(names) != 0 {
		t.Errorf("after refusals there is left %v", names)
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.OCI(done, "oci-layout:"+damaged); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
}

// TestOCIAtOnce: several stores, as in several processes, ask for one image.
func TestOCIAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p, err := layout.Write(filepath.Join(dir, "l"), empty.Index)
	if err == nil {
		var items []string
		for i := range 200 {
			items = append(items, fmt.Sprintf("f%03d=%d", i, i))
		}
		err = p.AppendImage(image(t, items))
	}
	if err != nil {
		t.Fatal(err)
	}
	roots := filepath.Join(dir, "roots")
	stores := []*Store{store(t, roots), store(t, roots)}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			root, err := stores[i%2].OCI(t.Context(), "oci-layout:"+filepath.Join(dir, "l"))
			if err != nil || len(tree(t, root.Dir)) != 200 {
				t.Errorf("%+v, %v", root, err)
			}
		})
	}
	wg.Wait()
	names, err := os.ReadDir(roots) // the root, and when it was used
	if err != nil || len(names) != 2 || names[1].Name() != usedMark+names[0].Name() {
		t.Errorf("the store holds %v, %v", names, err)
	}
}
