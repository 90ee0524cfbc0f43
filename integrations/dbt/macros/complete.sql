{#-
    A condition that holds for the results of complete substreams: a receipt of the release has ended each well.

    receipts: the relation that `.receipts(…)` of the release fills.
    job, segment: those of the release.
    scope: the scope of a result, as SQL; none: the source has no scope.
    end_time: the end of a result's window, as SQL; or name: the name of its substream.
    reasons: those of ends that are good enough.
    by_drain: whether the end of a substream that only a drain has closed is: the next deployment may bring more.
-#}
{% macro complete(
    receipts, job, segment, scope=none, end_time=none, name=none, reasons=['COMPLETE'], by_drain=false
) -%}
    {%- if (end_time is none) == (name is none) -%}
        {{ exceptions.raise_compiler_error("complete: give either end_time, for windows, or name") }}
    {%- endif -%}
    {%- if reasons is string or not reasons -%}
        {{ exceptions.raise_compiler_error("complete: give reasons as a list, such as ['COMPLETE', 'DEADLINE']") }}
    {%- endif -%}
    (
        {{ "''" if scope is none else scope }},
        {{ name if end_time is none else end_time }}
    ) in (
        select scope, {{ 'name' if end_time is none else 'end_time' }}
        from {{ receipts }}
        where job = {{ dbt.string_literal(dbt.escape_single_quotes(job)) }}
            and segment = {{ dbt.string_literal(dbt.escape_single_quotes(segment)) }}
            and revision = 0
            and reason in ({% for reason in reasons %}{{ dbt.string_literal(dbt.escape_single_quotes(reason)) }}{{ ', ' if not loop.last }}{% endfor %})
            {%- if not by_drain %}
            and not by_drain
            {%- endif %}
    )
{%- endmacro %}
