"""sshare's columns, over the rows of `/v1/accounting/shares`."""

from __future__ import annotations

from bireme.slurm.formats.accounting import AccountingField, AccountingText, field_map
from bireme.slurm.formats.values import Context, Record, tres_text

DEFAULT_FORMAT = "Account,User,RawShares,NormShares,RawUsage,EffectvUsage,FairShare"
LONG_FAIR_TREE = (
    "Account,User,RawShares,NormShares,RawUsage,NormUsage,EffectvUsage,FairShare,LevelFS,GrpTRESMins,TRESRunMins"
)
LONG_CLASSIC = "Account,User,RawShares,NormShares,RawUsage,NormUsage,EffectvUsage,FairShare,GrpTRESMins,TRESRunMins"


def with_partition(text: str) -> str:
    """-m: the partition after the user."""
    return text.replace("User,", "User,Partition,", 1)


def _word(name: str) -> AccountingText:
    def text(row: Record, _: Context) -> str:
        value = row.get(name)
        return "" if value is None else str(value)

    return text


def _six(name: str) -> AccountingText:
    """Six places, as Slurm prints its factors; `inf` stays a word."""

    def text(row: Record, _: Context) -> str:
        value = row.get(name)
        if value is None or isinstance(value, str):
            return value or ""
        return f"{value:.6f}"

    return text


def _amounts(name: str) -> AccountingText:
    return lambda row, context: tres_text(row.get(name), context)


def _account(row: Record, _: Context) -> str:
    return " " * int(row["shown_depth"]) + str(row["account"])


SHARE_FIELDS = field_map(
    [
        AccountingField("Account", 20, _account, left=True),
        AccountingField("Cluster", 10, lambda _, context: context.cluster),
        AccountingField("EffectvUsage", 13, _six("effective_usage")),
        AccountingField("FairShare", 10, _six("fair_share")),
        AccountingField("GrpTRESMins", 30, _amounts("grp_tres_mins")),
        AccountingField("GrpTRESRaw", 30, _amounts("grp_tres_raw")),
        AccountingField("ID", 6, _word("id")),
        AccountingField("LevelFS", 10, _six("level_fs")),
        AccountingField("NormShares", 11, _six("norm_shares")),
        AccountingField("NormUsage", 11, _six("norm_usage")),
        AccountingField("Partition", 12, _word("partition")),
        AccountingField("RawShares", 10, _word("raw_shares")),
        AccountingField("RawUsage", 11, lambda row, _: str(int(row["raw_usage"]))),
        AccountingField("TRESRunMins", 30, _amounts("tres_run_mins")),
        AccountingField("User", 10, _word("user")),
    ]
)
