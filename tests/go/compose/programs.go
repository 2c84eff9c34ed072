//go:build programs

// Package compose names the program that the tests build: how Docker Compose reads a file.
package compose

import _ "github.com/compose-spec/compose-go/v2/cmd"
