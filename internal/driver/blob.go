package driver

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"strconv"

	"github.com/hearthd/hearth/internal/fault"
)

func (d *Driver) handleBlob(w http.ResponseWriter, r *http.Request) {
	offset := int64(0)
	if s := r.URL.Query().Get("offset"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 0 {
			refuse(w, fault.New(fault.InvalidInput, "offset is not a number: %.40q", s))
			return
		}
		offset = n
	}
	f, err := d.blob.Get(r.PathValue("turn"), r.PathValue("blob"))
	if errors.Is(err, fs.ErrNotExist) {
		refuse(w, fault.New(fault.BlobNotFound, "The driver does not have this blob."))
		return
	}
	if err != nil {
		refuse(w, err)
		return
	}
	defer f.Close()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		refuse(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.WriteHeader(http.StatusOK)
	_, err = io.Copy(w, f)
	d.ended(err)
}

func (d *Driver) handleBlobDone(w http.ResponseWriter, r *http.Request) {
	if err := d.blob.Remove(r.PathValue("turn"), r.PathValue("blob")); err != nil {
		refuse(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
