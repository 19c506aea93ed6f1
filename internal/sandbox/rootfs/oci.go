package rootfs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/hearthd/hearth/internal/fault"
)

const (
	prefixLayout  = "oci-layout:"
	prefixArchive = "docker-archive:"
)

var platform = v1.Platform{OS: "linux", Architecture: "amd64"}

// OCI makes or finds the root of an image: a registry's reference, read with the
// credentials of the user's Docker configuration, "oci-layout:DIR" or
// "docker-archive:FILE". A tag is looked up each time, a digest only once. What
// is unpacked is checked against the image's configuration, whose digest names
// the root; the layer format is that of the OCI image specification ("Image
// Layer Filesystem Changeset"). Codes: ROOT_INVALID, DISK_FULL.
func (s *Store) OCI(ctx context.Context, ref string) (Root, error) {
	fixed := digestRef(ref)
	if fixed {
		if root, ok := s.known(ref); ok {
			return root, nil
		}
	}
	img, err := openImage(ctx, ref)
	if err != nil {
		return Root{}, rootFault(err, "The image %q could not be opened: %s", ref, firstLine(err))
	}
	raw, err := img.RawConfigFile()
	if err != nil {
		return Root{}, rootFault(err, "The image %q has no readable configuration: %s", ref, firstLine(err))
	}
	sum := sha256.Sum256(raw)
	digest := hex.EncodeToString(sum[:])
	dir, err := s.make(ctx, ociName(digest), func(dir string) error {
		return unpackImage(ctx, dir, img)
	})
	if err != nil {
		return Root{}, rootFault(err, "The image %q could not be unpacked: %s", ref, firstLine(err))
	}
	if fixed {
		if err := s.remember(ref, digest); err != nil {
			return Root{}, rootFault(err, "The image %q could not be noted.", ref)
		}
	}
	return Root{Kind: "oci", Dir: dir, Digest: "sha256:" + digest}, nil
}

func ociName(digest string) string { return "oci-" + digest[:32] }

// firstLine keeps a cause's words short enough for a message.
func firstLine(err error) string {
	s, _, _ := strings.Cut(err.Error(), "\n")
	return s[:min(len(s), 300)]
}

func digestRef(ref string) bool {
	if strings.HasPrefix(ref, prefixLayout) || strings.HasPrefix(ref, prefixArchive) {
		return false
	}
	_, err := name.NewDigest(ref)
	return err == nil
}

// refMark begins the name of a file that names the root of an image's digest.
const refMark = "ref-"

func (s *Store) refFile(ref string) string {
	sum := sha256.Sum256([]byte(ref))
	return filepath.Join(s.cfg.Dir, refMark+hex.EncodeToString(sum[:16]))
}

func (s *Store) known(ref string) (Root, bool) {
	data, err := os.ReadFile(s.refFile(ref))
	digest := strings.TrimSpace(string(data))
	if err != nil || len(digest) != 64 {
		return Root{}, false
	}
	dir := filepath.Join(s.cfg.Dir, ociName(digest))
	if _, err := os.Lstat(dir); err != nil {
		return Root{}, false
	}
	s.use(ociName(digest))
	if _, err := os.Lstat(dir); err != nil { // see make
		return Root{}, false
	}
	return Root{Kind: "oci", Dir: dir, Digest: "sha256:" + digest}, true
}

func (s *Store) remember(ref, digest string) error {
	tmp := s.temporary()
	defer func() { _ = os.Remove(tmp) }() // gone when it was renamed
	if err := os.WriteFile(tmp, []byte(digest+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, s.refFile(ref))
}

func openImage(ctx context.Context, ref string) (v1.Image, error) {
	if dir, ok := strings.CutPrefix(ref, prefixLayout); ok {
		index, err := layout.ImageIndexFromPath(dir)
		if err != nil {
			return nil, err
		}
		return fromIndex(index, 0)
	}
	if file, ok := strings.CutPrefix(ref, prefixArchive); ok {
		return tarball.ImageFromPath(file, nil)
	}
	r, err := name.ParseReference(ref)
	if err != nil {
		return nil, fault.Wrap(err, fault.RootInvalid, "%q is not an image reference: use a registry's name, oci-layout:DIR or docker-archive:FILE.", ref)
	}
	return remote.Image(r, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithPlatform(platform))
}

// fromIndex takes the one image for this platform, in nested indexes too.
func fromIndex(index v1.ImageIndex, depth int) (v1.Image, error) {
	if depth > 4 {
		return nil, errors.New("indexes are nested too deeply")
	}
	m, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	var found []v1.Descriptor
	for _, d := range m.Manifests {
		if d.MediaType.IsIndex() || d.Platform == nil || d.Platform.Satisfies(platform) {
			found = append(found, d)
		}
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("it has %d images for %s, one is needed", len(found), platform)
	}
	if found[0].MediaType.IsIndex() {
		nested, err := index.ImageIndex(found[0].Digest)
		if err != nil {
			return nil, err
		}
		return fromIndex(nested, depth+1)
	}
	return index.Image(found[0].Digest)
}

func unpackImage(ctx context.Context, dir string, img v1.Image) error {
	config, err := img.ConfigFile()
	if err != nil {
		return err
	}
	if config.OS != "" && config.OS != platform.OS || config.Architecture != "" && config.Architecture != platform.Architecture {
		return fmt.Errorf("it is for %s/%s, not %s", config.OS, config.Architecture, platform)
	}
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	if len(layers) != len(config.RootFS.DiffIDs) {
		return fmt.Errorf("it has %d layers and its configuration names %d", len(layers), len(config.RootFS.DiffIDs))
	}
	u, err := newUnpacker(dir)
	if err != nil {
		return err
	}
	defer u.close()
	for i, l := range layers {
		if err := unpackLayer(ctx, u, l, config.RootFS.DiffIDs[i]); err != nil {
			return fmt.Errorf("layer %d: %w", i+1, err)
		}
	}
	if err := u.skeleton(); err != nil {
		return err
	}
	return u.finish()
}

func unpackLayer(ctx context.Context, u *unpacker, l v1.Layer, want v1.Hash) error {
	r, err := l.Uncompressed()
	if err != nil {
		return err
	}
	defer r.Close()
	h := sha256.New()
	if want.Algorithm != "sha256" {
		return fmt.Errorf("the digest algorithm %q is not known", want.Algorithm)
	}
	in := io.TeeReader(&ctxReader{ctx: ctx, r: r}, h)
	if err := u.layer(in); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, in); err != nil { // what follows the archive's end counts too
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want.Hex {
		return fmt.Errorf("the content is sha256:%s, the configuration names %s", got, want)
	}
	return nil
}

// ctxReader makes a long copy end with its context.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *ctxReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
