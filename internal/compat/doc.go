// Package compat runs the conformance suite with drivers and plugins that the library itself does not depend on.
package compat
