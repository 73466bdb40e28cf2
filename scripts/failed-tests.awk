# Says at the end what a long run of `cargo test` said of each test that failed, since that may stand far above. Reads
# what cargo printed, standard error and output together. Of what a test said backtraces are left out, and what is longer
# than MAX_LINES lines or MAX_COLUMNS characters: the names of types that proptest makes fill pages.

BEGIN { MAX_LINES = 40; MAX_COLUMNS = 400 }

/^ +(Running|Doc-tests) / { suite = $0 }
/^test .* \.\.\. FAILED/ { failed[++count] = suite "\n" $0 }

# The words of one failed test last until those of the next, or the list of names.
/^---- .* ----$/ { said[++blocks] = $0; lines = 0; inside = 1; next }
/^failures:$/ { inside = 0 }
/^stack backtrace:$/ { traced = 1 }
inside && !traced && lines++ < MAX_LINES { said[blocks] = said[blocks] "\n" substr($0, 1, MAX_COLUMNS) }
!/^ / && !/^stack backtrace:$/ { traced = 0 }

/^error: / { errors[++others] = $0 }

END {
  print "== what failed"
  for (i = 1; i <= blocks; i++) print said[i]
  for (i = 1; i <= others; i++) print errors[i]
  for (i = 1; i <= count; i++) print failed[i]
}
