//go:build programs

// Package peers names the client library whose own tests run through the sidecar (tests/peers).
package peers

import _ "github.com/twmb/franz-go/pkg/kgo"
