package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// ServerFile is what a running server leaves in its state folder, so that the CLI
// finds it.
type ServerFile struct {
	Address string    `json:"address"` // base URL
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
}

const serverFile = "server.json"

// LogFile is where a server that the CLI starts writes its log.
func (c Config) LogFile() string { return filepath.Join(c.StateDir, "server.log") }

// WriteServerFile leaves the file, in one step.
func WriteServerFile(stateDir string, s ServerFile) error {
	b, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode the server file: %w", err)
	}
	return replace(filepath.Join(stateDir, serverFile), append(b, '\n'))
}

// ReadServerFile reads it. The error is [fs.ErrNotExist] when there is none.
func ReadServerFile(stateDir string) (ServerFile, error) {
	var s ServerFile
	b, err := os.ReadFile(filepath.Join(stateDir, serverFile))
	if err != nil {
		return s, fmt.Errorf("read the server file: %w", err)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("read the server file: %w", err)
	}
	return s, nil
}

// RemoveServerFile takes the file away if it is that of the process.
func RemoveServerFile(stateDir string, pid int) error {
	s, err := ReadServerFile(stateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && s.PID != pid {
		return nil
	}
	return os.Remove(filepath.Join(stateDir, serverFile))
}

// WriteToken keeps the owner's token where only its owner can read it.
func WriteToken(file, token string) error { return replace(file, []byte(token+"\n")) }

// ReadToken reads a token file. The error is [fs.ErrNotExist] when there is none.
func ReadToken(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	t := strings.TrimSpace(string(b))
	if t == "" {
		return "", fmt.Errorf("read the token: %s is empty", file)
	}
	return t, nil
}

// replace writes a file of mode 0600 in one step.
func replace(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}
