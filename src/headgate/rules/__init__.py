"""Rules: who is limited, and how much. Everything here but `sources` and what follows them is pure.

model       what a rule is                      problem    what can be wrong with one, and where
request     what a call looks like to a rule    facts      the same, each attribute in its one spelling
paths       the one spelling of a path          addresses  the one spelling of a client's address
patterns    what a path pattern means           trie       all patterns at once
conditions  what `match` means, in words        shelf      rules of one pattern, found by what else they ask
identify    whom a request is counted for       counting   what a rule that matches charges
match       the rulebook: all of that together  explain    why each rule applies or not
cases       tests that a file brings along     secrets    what is shown in the place of one

parse       bytes → rules, or all that is wrong: document (JSON, YAML), fields (the table of all of them, of kinds and
            sections), plain (its rules at a glance), parts (what each field means), gathering (many documents, one set),
            advice (what deserves a second look)
schema      the table for editors               starter    a file to begin with
reading     a file's bytes at one moment        pacing     large sets without holding up others

sources     files, ZooKeeper, etcd              live       the rules that hold now, followed by a thread
guard       changes that look like a mistake    lastgood   a copy to start with while the source is away
editing     changing the rules of a store       opening    what a person calls rules → live rules
"""
