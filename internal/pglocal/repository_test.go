//go:build unix

package pglocal

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// repository is a Maven repository on loopback that has one archive, for whatever system is asked for.
type repository struct {
	*httptest.Server

	archives atomic.Int32 // how many were asked for
	sums     atomic.Int32

	mu      sync.Mutex
	answers answers
}

// answers are how a repository answers.
type answers struct {
	answer func(w http.ResponseWriter, archive []byte, gone <-chan struct{}) // to who wants the archive
	sum    func(w http.ResponseWriter, sum string)                           // to who wants its sum
}

// newRepository serves programs that are the machine's own in disguise.
func newRepository(t *testing.T) *repository {
	t.Helper()
	folder := installed(t).folder
	return serveArchive(t, makeArchive(t, map[string]string{
		"bin/postgres": launcher(filepath.Join(folder, "postgres")),
		"bin/initdb":   launcher(filepath.Join(folder, "initdb")),
		"bin/pg_ctl":   "#!/bin/sh\nexit 1\n",
		"share/a":      strings.Repeat("not compressed ", 20_000),
		"lib/so":       "->so.1",
		"lib/so.1":     "a library",
	}))
}

// launcher is a script, since a program that is copied elsewhere would look for its other files there.
func launcher(program string) string { return fmt.Sprintf("#!/bin/sh\nexec '%s' \"$@\"\n", program) }

func serveArchive(t *testing.T, archive []byte) *repository {
	t.Helper()
	r := &repository{answers: answers{
		answer: func(w http.ResponseWriter, archive []byte, _ <-chan struct{}) { _, _ = w.Write(archive) },
		sum:    func(w http.ResponseWriter, sum string) { _, _ = fmt.Fprint(w, sum) },
	}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		path := request.URL.Path
		switch {
		case !strings.HasPrefix(path, "/maven/io/zonky/test/postgres/embedded-postgres-binaries-") || !strings.Contains(path, downloadedVersion):
			http.NotFound(w, request)
		case strings.HasSuffix(path, ".jar"):
			r.archives.Add(1)
			r.current().answer(w, archive, request.Context().Done())
		default:
			r.sums.Add(1)
			sum := sha256.Sum256(archive)
			r.current().sum(w, hex.EncodeToString(sum[:]))
		}
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *repository) current() answers {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.answers
}

// instead makes the repository answer in another way.
func (r *repository) instead(change func(*answers)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.answers)
}

func (r *repository) address() string { return r.URL + "/maven" }

// makeArchive makes what the repository has: a zip file, which Java calls jar, around a tar file, packed by xz.
func makeArchive(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var packed, outer bytes.Buffer
	inner := tar.NewWriter(&packed)
	for name, content := range files {
		header := &tar.Header{Name: name, Mode: 0o755, Size: int64(len(content)), Typeflag: tar.TypeReg}
		if target, isLink := strings.CutPrefix(content, "->"); isLink {
			header = &tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeSymlink}
			content = ""
		}
		if err := inner.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := inner.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := inner.Close(); err != nil {
		t.Fatal(err)
	}
	jar := zip.NewWriter(&outer)
	entry, err := jar.Create("postgres-linux-x86_64.txz")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := entry.Write(xzStore(packed.Bytes())); err != nil {
		t.Fatal(err)
	}
	if err := jar.Close(); err != nil {
		t.Fatal(err)
	}
	return outer.Bytes()
}

// xzStore makes an xz file of one block that is stored, not compressed: the standard library cannot write xz, and not every
// machine has the program. See https://tukaani.org/xz/xz-file-format.txt.
func xzStore(content []byte) []byte {
	flags := []byte{0, 1} // each block ends with a CRC32
	file := append([]byte("\xfd7zXZ\x00"), withCRC(flags)[0:2]...)
	file = binary.LittleEndian.AppendUint32(file, crc32.ChecksumIEEE(flags))

	start := len(file)
	// Length of the header, flags, the filter LZMA2 with one byte of properties, a dictionary of 64 KiB, padding.
	file = append(file, withCRC([]byte{2, 0, 0x21, 1, 8, 0, 0, 0})...)
	for first := true; len(content) > 0; first = false {
		chunk := content[:min(len(content), 1<<16)]
		content = content[len(chunk):]
		control := byte(2) // a stored chunk
		if first {
			control = 1 // and a new dictionary
		}
		file = append(file, control)
		file = binary.BigEndian.AppendUint16(file, uint16(len(chunk)-1))
		file = append(file, chunk...)
	}
	return finishXZ(append(file, 0), start, flags)
}

// finishXZ adds what follows a block's data.
func finishXZ(file []byte, start int, flags []byte) []byte {
	content := storedContent(file[start+12 : len(file)-1])
	unpadded := len(file) - start + 4
	for (len(file)-start)%4 != 0 {
		file = append(file, 0)
	}
	file = binary.LittleEndian.AppendUint32(file, crc32.ChecksumIEEE(content))
	index := []byte{0, 1}
	index = binary.AppendUvarint(index, uint64(unpadded))
	index = binary.AppendUvarint(index, uint64(len(content)))
	for len(index)%4 != 0 {
		index = append(index, 0)
	}
	index = withCRC(index)
	file = append(file, index...)
	footer := binary.LittleEndian.AppendUint32(nil, uint32(len(index)/4-1))
	footer = append(footer, flags...)
	file = binary.LittleEndian.AppendUint32(file, crc32.ChecksumIEEE(footer))
	file = append(file, footer...)
	return append(file, 'Y', 'Z')
}

// storedContent takes stored chunks apart again.
func storedContent(chunks []byte) []byte {
	var content []byte
	for len(chunks) > 0 {
		size := int(binary.BigEndian.Uint16(chunks[1:])) + 1
		content = append(content, chunks[3:3+size]...)
		chunks = chunks[3+size:]
	}
	return content
}

func withCRC(content []byte) []byte {
	return binary.LittleEndian.AppendUint32(bytes.Clone(content), crc32.ChecksumIEEE(content))
}
