// What a classic dashboard of ours may contain: Grafana's own published types, as JSON writes them.
// `grafana/...` is one release of @grafana/schema; tests/grafana/test_schema.py maps it to each in turn.

import type * as classic from 'grafana/dashboard';
import type * as heatmap from 'grafana/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen';
import type * as stat from 'grafana/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as timeline from 'grafana/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen';
import type * as table from 'grafana/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type * as timeseries from 'grafana/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';
import type { PrometheusDataQuery } from 'grafana/prometheus';

// JSON has a string where TypeScript has a member of an enumeration.
type Json<T> = unknown extends T
  ? T
  : T extends string
    ? `${T}`
    : T extends number | boolean | null | undefined
      ? T
      : T extends (infer Item)[]
        ? Json<Item>[]
        : T extends object
          ? { [Key in keyof T]: Json<T[Key]> }
          : T;

type Query = Json<PrometheusDataQuery>;
type Fields<Custom> = Omit<Json<classic.FieldConfigSource>, 'defaults'> & {
  defaults: Omit<Json<classic.FieldConfig>, 'custom'> & { custom?: Partial<Json<Custom>> };
};
type Panel<Type extends string, Options, Custom> = Omit<
  Json<classic.Panel>,
  'type' | 'options' | 'fieldConfig' | 'targets'
> & { type: Type; options: Partial<Json<Options>>; fieldConfig: Fields<Custom>; targets: Query[] };

type AnyPanel =
  | Panel<'stat', stat.Options, Record<string, never>>
  | Panel<'timeseries', timeseries.Options, timeseries.FieldConfig>
  | Panel<'heatmap', heatmap.Options, heatmap.FieldConfig>
  | Panel<'state-timeline', timeline.Options, timeline.FieldConfig>
  | Panel<'table', table.Options, table.FieldConfig>;
type Row = Omit<Json<classic.RowPanel>, 'panels' | 'type'> & { type: 'row'; panels: AnyPanel[] };
// Prometheus's own fields of an annotation are in no published type.
type Marker = Json<classic.AnnotationQuery> & { expr: string; titleFormat: string; step: string };

export type Dashboard = Omit<Json<classic.Dashboard>, 'panels' | 'annotations'> & {
  panels: (AnyPanel | Row)[];
  annotations: { list?: Marker[] };
};
