// Command guest is what the suite in package sandboxtest runs inside sandboxes:
// pid 1 that dials the doors' socket, and small commands that look around. It is
// static and needs nothing of the root it runs in.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hearthd/hearth/internal/sandbox"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "guest: no command")
		os.Exit(2)
	}
	args := os.Args[2:]
	switch os.Args[1] {
	case "pid1":
		pid1()
	case "sleep":
		for {
			time.Sleep(time.Hour)
		}
	case "exit":
		os.Exit(number(args, 0))
	case "signal":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		time.Sleep(time.Hour)
	case "cat":
		_, _ = io.Copy(os.Stdout, os.Stdin)
	case "hold":
		hold()
	case "look":
		look()
	case "hog":
		hog(number(args, 0))
	case "fill":
		fill(args[0], number(args, 1))
	case "burn":
		burn(time.Duration(number(args, 0)) * time.Millisecond)
	case "fork":
		fork(number(args, 0))
	case "read":
		data, err := os.ReadFile(args[0])
		report(err)
		_, _ = os.Stdout.Write(data)
	case "write":
		report(os.WriteFile(args[0], []byte("written inside"), 0o644))
	default:
		fmt.Fprintln(os.Stderr, "guest: unknown command")
		os.Exit(2)
	}
}

func number(args []string, i int) int {
	n, err := strconv.Atoi(args[i])
	report(err)
	return n
}

func report(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// pid1 waits for its orphans and keeps a connection to the doors' socket. A
// line "exit N" from there ends it.
func pid1() {
	child := make(chan os.Signal, 16)
	signal.Notify(child, syscall.SIGCHLD)
	go func() {
		for range child {
			for {
				if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
					break
				}
			}
		}
	}()
	for {
		c, err := net.Dial("unix", sandbox.PathSocket)
		if err != nil {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		name, _ := os.Hostname()
		fmt.Fprintf(c, "hello from pid %d on %s\n", os.Getpid(), name)
		lines := bufio.NewScanner(c)
		for lines.Scan() {
			if n, ok := strings.CutPrefix(lines.Text(), "exit "); ok {
				code, _ := strconv.Atoi(n)
				os.Exit(code)
			}
			fmt.Fprintf(c, "echo %s\n", lines.Text())
		}
		c.Close()
	}
}

// hold prints a line and ends, while a child in a session of its own keeps the output open.
func hold() {
	c := exec.Command("/proc/self/exe", "sleep")
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	report(c.Start())
	fmt.Println("said before the end")
}

// Look is what a command sees around it.
type Look struct {
	UID, PID   int
	Dir        string
	Env        []string
	Interfaces []string
	Routes     string
	Dial       map[string]string
	Lookup     map[string]string
	Loopback   string
	Root       []string
}

func look() {
	l := Look{UID: os.Getuid(), PID: os.Getpid(), Env: os.Environ(), Dial: map[string]string{}, Lookup: map[string]string{}}
	l.Dir, _ = os.Getwd()
	ifs, err := net.Interfaces()
	report(err)
	for _, i := range ifs {
		l.Interfaces = append(l.Interfaces, i.Name)
	}
	for _, f := range []string{"/proc/net/route", "/proc/net/ipv6_route"} {
		data, _ := os.ReadFile(f)
		for line := range strings.Lines(string(data)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] != "Iface" && f[len(f)-1] != "lo" && f[0] != "lo" {
				l.Routes += line
			}
		}
	}
	for _, a := range []string{"1.1.1.1:443", "169.254.169.254:80", "10.0.0.1:22", "[2606:4700:4700::1111]:443"} {
		c, err := net.DialTimeout("tcp", a, 2*time.Second)
		if err == nil {
			c.Close()
			l.Dial[a] = "connected"
			continue
		}
		l.Dial[a] = "refused"
	}
	for _, n := range []string{"localhost", "allowed.example", "example.com"} {
		if ips, err := net.LookupHost(n); err == nil {
			l.Lookup[n] = ips[0]
		}
	}
	l.Loopback = loopback()
	names, _ := os.ReadDir("/")
	for _, n := range names {
		l.Root = append(l.Root, n.Name())
	}
	_ = json.NewEncoder(os.Stdout).Encode(l)
}

func loopback() string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err.Error()
	}
	defer ln.Close()
	c, err := net.DialTimeout("tcp", ln.Addr().String(), 2*time.Second)
	if err != nil {
		return err.Error()
	}
	c.Close()
	return "works"
}

func hog(mib int) {
	var keep [][]byte
	for range mib {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 512 {
			b[i] = byte(i>>9) + 1
		}
		keep = append(keep, b)
	}
	fmt.Println("held", len(keep))
}

func fill(path string, mib int) {
	f, err := os.Create(path)
	report(err)
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(i)
	}
	var n int64
	for range mib {
		m, err := f.Write(block)
		n += int64(m)
		if err != nil {
			_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"written": n, "full": strings.Contains(err.Error(), syscall.ENOSPC.Error())})
			return
		}
	}
	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"written": n})
}

// burn counts how much work is done in a time.
func burn(d time.Duration) {
	end := time.Now().Add(d)
	n, x := 0, uint64(1)
	for time.Now().Before(end) {
		for range 10000 {
			x = x*6364136223846793005 + 1442695040888963407
		}
		n++
	}
	fmt.Println(n, x&1)
}

// fork starts up to n sleeping processes and says how many there were.
func fork(n int) {
	started := 0
	for range n {
		c := exec.Command("/proc/self/exe", "sleep")
		if err := c.Start(); err != nil {
			fmt.Println(started, err)
			os.Exit(1)
		}
		started++
	}
	fmt.Println(started)
}
