//go:build programs

// Package helmdocs names the program that writes the chart's README from its values and their comments.
package helmdocs

import _ "github.com/norwoodj/helm-docs/cmd/helm-docs"
