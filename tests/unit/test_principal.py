"""Kafka's mapping rules without a broker: the examples of its documentation and of its own unit tests' kinds."""

from __future__ import annotations

import pytest

from proxy.net.tls.principal import NoRuleError, PrincipalRules, RuleError


@pytest.mark.parametrize(
    ("rules", "subject", "user"),
    [
        # the documentation's own (Kafka, security, "Customizing SSL User Name")
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=serviceuser,OU=ServiceUsers,O=Unknown,C=Unknown", "serviceuser"),
        (
            "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
            "CN=adminUser,OU=Admin,O=U,L=U,ST=U,C=U",
            "adminuser@admin",
        ),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L, DEFAULT", "cn=Duke,ou=JavaSoft", "duke"),
        ("RULE:^cn=(.?),ou=(.?),dc=(.?),dc=(.?)$/$1@$2/U", "cn=a,ou=b,dc=c,dc=d", "A@B"),
        # order: the first that matches the whole name
        ("RULE:CN=(a)/1/,RULE:CN=(a.*)/2/", "CN=ab", "2"),
        ("DEFAULT,RULE:.*/x/", "CN=ab", "CN=ab"),
        # commas and slashes inside a rule
        (r"RULE:^CN=([^,]+)(,.*|$)/$1/", "CN=x,OU=y", "x"),
        (r"RULE:^CN=a\/b$/c\/d/", "CN=a/b", "c/d"),
        # groups that there are not stay as they are written; so many digits as there are groups
        ("RULE:CN=(.)(.)/$1-$3-$12/", "CN=ab", "a-$3-a2"),
        (r"RULE:CN=(.)/\$1$0/", "CN=a", "$1CN=a"),
        ("RULE:CN=(?<first>.)(x)?/${first}$2/", "CN=a", "a"),
        # replaced wherever it is found: .* finds the name, and the nothing behind it
        ("RULE:(.*)/<$1>/", "CN=a", "<CN=a><>"),
        ("RULE:CN=(ß)/$1/U", "CN=ß", "SS"),
        ("RULE:(?i)cn=(.*+)/x/", "CN=a", "x"),
    ],
)
def test_maps_principals_as_a_broker(rules: str, subject: str, user: str) -> None:
    assert PrincipalRules(rules).user(subject) == user


def test_unmatched_principal_has_no_user() -> None:
    # a dot is not the same character in both languages
    for rules, subject in (("RULE:CN=(a)/$1/", "CN=ab"), ("RULE:CN=.*/x/", "CN=a\u2028b")):
        with pytest.raises(NoRuleError):
            PrincipalRules(rules).user(subject)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("", "at least one rule"),
        ("default", "not 'default'"),
        ("DEFAULT/L", "not 'DEFAULT/L'"),
        ("RULE:CN=(.*?),OU=ServiceUsers.*/$1", "not 'RULE:CN=(.*?)'"),
        ("RULE:^CN=(.*)$/$1/LU", "not 'RULE:"),
        ("RULE:CN=(/$1/", "a regular expression"),
        ("RULE:CN=a/$1/", "a group in the pattern for $1"),
        ("RULE:CN=(a)/$x/", "a number or a name in braces behind each $"),
        ("RULE:CN=(a)/${nobody}/", "a group named nobody"),
        (r"RULE:CN=\p{Alpha}/x/", "Java and Python read alike"),
        (r"RULE:CN=\Qa\E/x/", "Java and Python read alike"),
        ("RULE:CN=[a[b]]/x/", "Java and Python read alike"),
        ("RULE:CN=[a-z&&[^b]]/x/", "Java and Python read alike"),
        ("RULE:(?>a)/x/", "Java and Python read alike"),
        ("RULE:a(?i)b/x/", "Java and Python read alike"),
        ("RULE:a$b/x/", "Java and Python read alike"),
    ],
)
def test_rules_that_cannot_be_relied_on_are_refused(rules: str, expected: str) -> None:
    with pytest.raises(RuleError) as refused:
        PrincipalRules(rules)
    assert expected in str(refused.value)
