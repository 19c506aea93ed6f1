// Command hearth-driver is the first process of a sandbox; see package driver.
// Its one argument is the configuration file. It is carried inside hearth and
// not meant to be started by hand.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/hearthd/hearth/internal/driver"
	"github.com/hearthd/hearth/internal/driver/proc"
)

// build names the build; the linker sets it.
var build = "dev"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "hearth-driver:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("usage: hearth-driver CONFIG")
	}
	syscall.Umask(0o022)
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	cfg, err := driver.LoadConfig(os.Args[1])
	if err != nil {
		return err
	}
	if os.Getpid() != 1 {
		if err := proc.Subreaper(); err != nil {
			return err
		}
	}
	// The first process gets no signal that it does not handle.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	procs := proc.New(true)
	reap, stopReaping := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stopReaping()
	wg.Go(func() { procs.Reap(reap) })
	d, err := driver.New(cfg, driver.Options{Build: build, Env: os.Environ(), Procs: procs, Now: time.Now, Log: log})
	if err != nil {
		return err
	}
	return d.Run(ctx)
}
