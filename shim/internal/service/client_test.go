package service

import (
	"strings"
	"testing"
	"time"
)

func TestOnlyUnixSockets(t *testing.T) {
	for _, address := range []string{"127.0.0.1:9000", "dns:///muster:9000", "passthrough:///x", ""} {
		if _, err := Dial(address, time.Second); err == nil || !strings.Contains(err.Error(), "Unix socket") {
			t.Errorf("%q: %v", address, err)
		}
	}
}
