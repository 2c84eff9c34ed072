//go:build programs

// Package actionlint names the program that the tests build: it reads GitHub Actions workflows as the service would.
package actionlint

import _ "github.com/rhysd/actionlint/cmd/actionlint"
