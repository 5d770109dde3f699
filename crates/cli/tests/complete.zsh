# Prints what zsh offers for a line, one a line: complete.zsh SHELL SCRIPT LINE.
#
# Completion only runs in zsh's line editor, which needs a terminal: an interactive zsh in a pseudo-terminal loads SCRIPT,
# is typed LINE and a tab, and its compadd tells what it is given between two lines that end in a NUL. The way of
# Valodim's zsh-capture-completion.

here() {
    # Unpacked beside the machine's own files, it looks for its modules and functions there.
    if [[ -d $LARDER_SHELL_ROOT/usr/share/zsh ]]; then
        module_path=($LARDER_SHELL_ROOT/usr/lib/*/zsh/*(N/))
        fpath=($LARDER_SHELL_ROOT/usr/share/zsh/functions/**/*(N/))
    fi
}
here
zmodload zsh/zpty || exit 3

setup="$(functions here)
here
setopt zle
PROMPT=
autoload -Uz compinit
compinit -D -u
source ${(q)2}
bindkey '^M' undefined
bindkey '^J' undefined
bindkey '^I' complete-word
mark() { print -rn -- \$'\\0\\n' }
mark-and-exit() { mark; exit }
compprefuncs=(mark)
comppostfuncs=(mark-and-exit)
zstyle ':completion:*' insert-tab false
compadd() {
    # With these, it is asked and not told.
    if [[ \${@[1,(i)(-|--)]} == *-(O|A|D)\\ * ]]; then
        builtin compadd \"\$@\"
        return
    fi
    typeset -a hits
    builtin compadd -A hits \"\$@\"
    print -rl -- \$hits
    builtin compadd \"\$@\"
}
print ready
"
# Without its line editor at first, which is a module.
zpty shell $1 -f -i -o no_zle
() {
    zpty -w shell "source $1"
    while zpty -r shell line; do
        [[ $line == *ready* ]] && break
    done
} =(print -r -- $setup)
zpty -w -n shell "$3"$'\t'
marks=0
while zpty -r shell line; do
    line=${line%%[$'\r\n']#}
    if [[ $line == *$'\0' ]]; then
        (( ++marks == 2 )) && break
    elif (( marks == 1 )); then
        print -r -- $line
    fi
done
zpty -d shell
(( marks == 2 )) || { print -ru2 'zsh ended before it offered anything'; exit 4 }
