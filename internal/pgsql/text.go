package pgsql

import (
	"iter"
	"strings"
)

// The predicates below look at the text of statements that others wrote, for the guard. They look no further than the
// first words of each statement and a few reserved words behind them; a function that writes looks like any other. A
// text that does not end properly (an open quote, comment or parenthesis) is never a read. String literals are read as
// with standard_conforming_strings on, the server's default. Placeholders that GORM has yet to replace, ? and @name, may
// be there.

// IsRead reports whether every statement in query only reads. EXPLAIN counts if it does not run its statement, and SELECT
// does not if it locks rows: it can wait as a write does. A text without statements is a read: it changes nothing.
func IsRead(query string) bool {
	l := lexer{text: query}
	for first := range l.statements() {
		if !l.reads(first) {
			return false
		}
	}
	return !l.broken
}

// IsSavepoint reports whether query consists of SAVEPOINT, RELEASE and ROLLBACK TO alone: it neither reads nor writes, nor
// ends a transaction.
func IsSavepoint(query string) bool {
	l := lexer{text: query}
	savepoint := false
	for first := range l.statements() {
		switch {
		case first.is("SAVEPOINT", "RELEASE"):
		case first.is("ROLLBACK") && l.rollsBackTo():
		default:
			return false
		}
		savepoint = true
	}
	return savepoint && !l.broken
}

// EndsTransaction finds the first statement in query that begins or ends a transaction, and returns its keyword. ROLLBACK
// TO a savepoint does neither. The END of a function body (BEGIN ATOMIC) is mistaken for one: better than the reverse.
func EndsTransaction(query string) (keyword string, ok bool) {
	l := lexer{text: query}
	for first := range l.statements() {
		switch {
		case first.is("PREPARE"):
			if l.next().is("TRANSACTION") { // PREPARE name AS is a prepared statement
				return "PREPARE TRANSACTION", true
			}
		case first.is("ROLLBACK"):
			if !l.rollsBackTo() {
				return "ROLLBACK", true
			}
		case first.is("BEGIN", "START", "COMMIT", "END", "ABORT"):
			return strings.ToUpper(first.text), true
		}
	}
	return "", false
}

// WrittenTable is the name of the table that query writes to first, without quotes, for a message: "" if that cannot be
// told at a glance.
func WrittenTable(query string) string {
	l := lexer{text: query}
	for first := range l.statements() {
		if first.is("WITH", "EXPLAIN") {
			first = l.find("INSERT", "UPDATE", "DELETE", "MERGE")
		}
		if first.is("INSERT", "UPDATE", "DELETE", "MERGE", "TRUNCATE", "COPY") {
			return l.name()
		}
	}
	return ""
}

// Names reports whether a table's name stands anywhere in query: as a word, whose case does not matter to the server, or in
// quotes.
func Names(query, table string) bool {
	l := lexer{text: query}
	for first := range l.statements() {
		for t := first; !t.ends(); t = l.next() {
			if t.kind == word && strings.EqualFold(t.text, table) || t.kind == quoted && t.unquoted() == table {
				return true
			}
		}
	}
	return false
}

// reads reports whether the statement that first begins only reads.
func (l *lexer) reads(first token) bool {
	var writing []string
	switch {
	case first.is("SHOW"):
	case first.is("SELECT", "VALUES", "TABLE"):
		writing = []string{"INTO"} // creates the table
	case first.is("WITH"):
		writing = []string{"INTO", "INSERT", "UPDATE", "DELETE", "MERGE"}
	case first.is("EXPLAIN"):
		writing = []string{"ANALYZE", "ANALYSE", `"ANALYZE"`} // runs it; an option may stand in quotes
	default:
		return false
	}
	behindFor := false
	for t := l.next(); !t.ends(); t = l.next() {
		if t.is(writing...) || behindFor && t.is("UPDATE", "SHARE", "NO", "KEY") {
			return false
		}
		behindFor = t.is("FOR")
	}
	return true
}

// find skips to the first of words in the rest of the statement. It passes over FOR UPDATE and FOR NO KEY UPDATE, which
// write to no table. FOR is reserved: it cannot be the name of something in front of an UPDATE that writes.
func (l *lexer) find(words ...string) token {
	locks := false
	for {
		t := l.next()
		if t.ends() || t.is(words...) && (!locks || !t.is("UPDATE")) {
			return t
		}
		locks = t.is("FOR") || locks && t.is("NO", "KEY")
	}
}

// rollsBackTo reports whether the ROLLBACK just read goes back to a savepoint only.
func (l *lexer) rollsBackTo() bool {
	t := l.next()
	if t.is("WORK", "TRANSACTION") {
		t = l.next()
	}
	return t.is("TO")
}

// name reads a table's name behind the verb that writes to it.
func (l *lexer) name() string {
	t := l.next()
	for t.is("INTO", "FROM", "TABLE", "ONLY") {
		t = l.next()
	}
	var name strings.Builder
	for t.kind == word || t.kind == quoted {
		name.WriteString(t.unquoted())
		if t = l.next(); t.text != "." {
			break
		}
		name.WriteByte('.')
		t = l.next()
	}
	return name.String()
}

// kind is what a token is, as far as the predicates care.
type kind int

const (
	end       kind = iota // of the text
	semicolon             // between two statements
	word                  // a keyword or a name
	quoted                // a name in double quotes
	other                 // a literal, a number, or a byte of anything else
)

// token is a piece of SQL text, as written.
type token struct {
	kind kind
	text string
}

// is reports whether the token is one of these keywords, which are given in capitals.
func (t token) is(keywords ...string) bool {
	for _, keyword := range keywords {
		if len(t.text) == len(keyword) && foldsTo(t.text, keyword) {
			return true
		}
	}
	return false
}

// foldsTo compares letters as the server does, in ASCII alone: strings.EqualFold takes U+017F for an S.
func foldsTo(text, capitals string) bool {
	for i := range len(text) {
		c := text[i]
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		if c != capitals[i] {
			return false
		}
	}
	return true
}

// ends reports whether the token ends its statement.
func (t token) ends() bool { return t.kind == end || t.kind == semicolon }

// unquoted is the name that the token stands for.
func (t token) unquoted() string {
	if t.kind != quoted {
		return t.text
	}
	name := strings.TrimSuffix(strings.TrimPrefix(t.text, `"`), `"`)
	return strings.ReplaceAll(name, `""`, `"`)
}

// lexer cuts SQL text into tokens, by the rules of PostgreSQL's scan.l, in linear time.
type lexer struct {
	text   string
	pos    int
	depth  int   // of parentheses
	last   token // the latest one read
	broken bool  // something was left open, or closed that was not: the server refuses such a text as a whole
}

// statements yields the first token of each statement, without leading parentheses. The loop's body may read on, up to
// the statement's end.
func (l *lexer) statements() iter.Seq[token] {
	return func(yield func(token) bool) {
		for l.next().kind != end {
			if l.last.kind == semicolon || l.last.text == "(" {
				continue
			}
			if !yield(l.last) {
				return
			}
			for !l.last.ends() {
				l.next()
			}
		}
	}
}

// next reads a token. Behind the end there are only more ends.
func (l *lexer) next() token {
	l.skipBlank()
	start := l.pos
	kind := l.scan()
	l.last = token{kind, l.text[start:l.pos]}
	return l.last
}

// scan moves behind the token that starts here.
func (l *lexer) scan() kind {
	c := l.peek(0)
	switch {
	case l.pos == len(l.text):
		l.broken = l.broken || l.depth > 0
		return end
	case c == '\'':
		l.skipQuoted(c, false)
		return other
	case c == '"':
		l.skipQuoted(c, false)
		return quoted
	case c == '$':
		l.skipDollar()
		return other
	case isDigit(c):
		l.skipWhile(isDigit) // no further: in 1E'\'' the number ends before the E
		return other
	case isLetter(c):
		return l.scanWord()
	}
	l.pos++
	switch c {
	case ';':
		return semicolon // in parentheses, too: CREATE RULE has statements there
	case '(':
		l.depth++
	case ')':
		l.depth--
		l.broken = l.broken || l.depth < 0
	}
	return other
}

// scanWord moves behind a word, or behind a literal in which the backslash escapes. Other prefixes (B, N, U&, X) don't
// change where a literal ends.
func (l *lexer) scanWord() kind {
	start := l.pos
	l.skipWhile(func(c byte) bool { return isLetter(c) || isDigit(c) || c == '$' })
	if l.peek(0) != '\'' || !(token{text: l.text[start:l.pos]}).is("E") {
		return word
	}
	// Continued on another line, a literal keeps its kind: without its E, the quote in E'a' \n '\'' would seem to close it.
	for {
		l.skipQuoted('\'', true)
		if !l.continued() {
			return other
		}
	}
}

// continued moves to the literal that continues the one before: only blanks, among them a newline, are between them.
func (l *lexer) continued() bool {
	after := *l
	for after.skipSpace() || after.skipLineComment() {
	}
	if after.peek(0) != '\'' || !strings.ContainsAny(l.text[l.pos:after.pos], "\n\r") {
		return false
	}
	l.pos = after.pos
	return true
}

// skipQuoted moves behind a closing quote. A doubled one does not close.
func (l *lexer) skipQuoted(quote byte, escapes bool) {
	for l.pos++; l.pos < len(l.text); l.pos++ {
		switch c := l.text[l.pos]; {
		case c == quote && l.peek(1) != quote:
			l.pos++
			return
		case c == quote, c == '\\' && escapes:
			l.pos++
		}
	}
	l.giveUp()
}

// skipDollar moves behind a literal between $tag$ and $tag$, or behind the dollar sign of a parameter.
func (l *lexer) skipDollar() {
	start := l.pos
	l.pos++
	if isDigit(l.peek(0)) { // in $1$$ a literal opens behind the parameter
		return
	}
	l.skipWhile(func(c byte) bool { return isLetter(c) || isDigit(c) })
	if l.peek(0) != '$' {
		return
	}
	l.pos++
	tag := l.text[start:l.pos]
	length := strings.Index(l.text[l.pos:], tag)
	if length < 0 {
		l.giveUp()
		return
	}
	l.pos += length + len(tag)
}

// skipBlank moves behind white space and comments.
func (l *lexer) skipBlank() {
	for l.skipSpace() || l.skipLineComment() || l.skipComment() {
	}
}

// skipSpace moves behind white space and reports whether there was any.
func (l *lexer) skipSpace() bool {
	start := l.pos
	l.skipWhile(func(c byte) bool { return strings.IndexByte(" \t\n\r\f\v", c) >= 0 })
	return l.pos > start
}

// skipLineComment moves behind -- and what follows on the line.
func (l *lexer) skipLineComment() bool {
	if l.peek(0) != '-' || l.peek(1) != '-' {
		return false
	}
	l.skipWhile(func(c byte) bool { return c != '\n' && c != '\r' })
	return true
}

// skipComment moves behind a comment in /* */, which may hold others.
func (l *lexer) skipComment() bool {
	if l.peek(0) != '/' || l.peek(1) != '*' {
		return false
	}
	for nested := 0; l.pos < len(l.text); l.pos++ {
		switch {
		case l.peek(0) == '/' && l.peek(1) == '*':
			nested++
			l.pos++
		case l.peek(0) == '*' && l.peek(1) == '/':
			nested--
			l.pos++
		}
		if nested == 0 {
			l.pos++
			return true
		}
	}
	l.giveUp()
	return true
}

// skipWhile moves on as long as the bytes are in class.
func (l *lexer) skipWhile(class func(byte) bool) {
	for l.pos < len(l.text) && class(l.text[l.pos]) {
		l.pos++
	}
}

// giveUp goes to the end of a text that has left something open.
func (l *lexer) giveUp() {
	l.pos, l.broken = len(l.text), true
}

// peek is the byte n further on, or 0.
func (l *lexer) peek(n int) byte {
	if l.pos+n >= len(l.text) {
		return 0
	}
	return l.text[l.pos+n]
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// isLetter reports whether a name may start with c. Every byte beyond ASCII counts, in whatever encoding.
func isLetter(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' || c >= 0x80
}
